"""torchpipe, one shard of several: ``shuffle().sharding_filter()`` behind the reader, which reads all files."""

from __future__ import annotations

from typing import Any

__all__ = ["graph"]


def graph(reader: Any, piece_bytes: int) -> Any:
    return reader.shuffle(buffer_size=1_000).sharding_filter()
