"""torchpipe, one shard of several: ``shuffle().sharding_filter()`` behind the reader, which reads all files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.peers._one_shard import BUFFER, KINDS, stream

__all__ = ["KINDS", "documents"]


def _divided(reader: Any) -> Any:
    return reader.shuffle(buffer_size=BUFFER).sharding_filter()


def documents(
    kind: str, files: tuple[str, ...], piece_bytes: int, epoch: int, shard: int, shards: int
) -> Iterator[dict[str, Any]]:
    return stream(kind, files, _divided, epoch, shard, shards)
