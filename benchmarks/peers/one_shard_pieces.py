"""torchpipe, one shard of several: ``shard_pieces()`` right behind the reader, which reads the shard's own bytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from benchmarks.peers._one_shard import BUFFER, KINDS, stream

__all__ = ["KINDS", "documents"]


@cache
def _divided(piece_bytes: int) -> Any:
    return lambda reader: reader.shard_pieces(piece_bytes=piece_bytes).shuffle(buffer_size=BUFFER)


def documents(
    kind: str, files: tuple[str, ...], piece_bytes: int, epoch: int, shard: int, shards: int
) -> Iterator[dict[str, Any]]:
    return stream(kind, files, _divided(piece_bytes), epoch, shard, shards)
