"""torchpipe, one shard of several: ``shard_pieces()`` right behind the reader, which reads the shard's own bytes."""

from __future__ import annotations

from typing import Any

__all__ = ["graph"]


def graph(reader: Any, piece_bytes: int) -> Any:
    return reader.shard_pieces(piece_bytes=piece_bytes).shuffle(buffer_size=1_000)
