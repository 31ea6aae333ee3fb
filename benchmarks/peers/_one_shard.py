"""What torchpipe's peers of P24 share: readers of each kind of files, and the documents of one shard."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

from torchpipe import iterate
from torchpipe.iter import JsonlReader, ParquetReader, TFRecordReader, WebDatasetReader

__all__ = ["BUFFER", "KINDS", "share", "stream"]

KINDS = ("jsonl", "parquet", "tar", "tfrecord")
BUFFER = 1_000


@cache
def _graph(kind: str, files: tuple[str, ...], divide: Callable[[Any], Any]) -> Any:
    if kind == "tar":
        return divide(WebDatasetReader(files, ["json"])).map(itemgetter("json"))
    if kind == "tfrecord":
        return divide(TFRecordReader(files, parse=False)).map(json.loads)
    return divide((JsonlReader if kind == "jsonl" else ParquetReader)(files))


def stream(
    kind: str, files: tuple[str, ...], divide: Callable[[Any], Any], epoch: int, shard: int, shards: int
) -> Iterator[dict[str, Any]]:
    """The documents of ``shard``, with ``divide`` behind the reader, which stays from epoch to epoch."""
    return iterate(_graph(kind, files, divide), seed=1, epoch=epoch, shard=shard, num_shards=shards)


def share(files: Sequence[str], shard: int, shards: int) -> tuple[list[str], int, int]:
    """For libraries that divide files: those of the shard, and of their documents which to keep, from where and how
    many apart. With more shards than files each reads all, as their users have it read then.
    """
    return (list(files[shard::shards]), 0, 1) if len(files) >= shards else (list(files), shard, shards)
