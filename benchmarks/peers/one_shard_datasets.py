"""Hugging Face datasets, one shard of several: a stream, ``split_dataset_by_node`` and the stream's own shuffle."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import datasets
from datasets.distributed import split_dataset_by_node

from benchmarks.peers._one_shard import BUFFER

__all__ = ["KINDS", "documents"]

KINDS = ("jsonl", "parquet")


@cache
def _stream(kind: str, files: tuple[str, ...]) -> Any:
    builder = "json" if kind == "jsonl" else kind
    return datasets.load_dataset(builder, data_files=list(files), split="train", streaming=True)


def documents(
    kind: str, files: tuple[str, ...], piece_bytes: int, epoch: int, shard: int, shards: int
) -> Iterator[dict[str, Any]]:
    own = split_dataset_by_node(_stream(kind, files), rank=shard, world_size=shards)
    own = own.shuffle(seed=1, buffer_size=BUFFER)
    own.set_epoch(epoch)
    return iter(own)
