"""The division of ``storage_options``: fsspec's own, and the keys that say how torchpipe reads ahead and keeps blocks.

The three keys stand there, and not among the arguments of each reader, since, as the rest of ``storage_options``, they
say how data are reached. Every reader has them at once, no fingerprint and no state knows them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchpipe.formats.storage.block_cache import BLOCK_BYTES, BlockCache
from torchpipe.node.validate import check_count

__all__ = ["AHEAD_BYTES", "Reading", "check_storage_options", "split_options"]

AHEAD_BYTES = 32 << 20
_OURS = ("ahead_bytes", "cache_dir", "cache_bytes")


@dataclass(frozen=True)
class Reading:
    """``ahead_bytes``: at most so many of each open file are asked for before they are read; ``cache``: where blocks
    are kept on disk, if they are."""

    ahead_bytes: int = AHEAD_BYTES
    cache: BlockCache | None = None


def split_options(options: Mapping[str, Any] | None) -> tuple[dict[str, Any], Reading]:
    """fsspec's options, and torchpipe's. Raises: TypeError, ValueError, OSError, as :func:`check_storage_options`."""
    rest = dict(options or {})
    ours = {name: rest.pop(name) for name in _OURS if name in rest}
    if not ours:
        return rest, Reading()
    ahead_bytes = check_count("ahead_bytes", ours.get("ahead_bytes", AHEAD_BYTES), at_least=0)
    folder, cache_bytes = ours.get("cache_dir"), ours.get("cache_bytes")
    if (folder is None) != (cache_bytes is None):
        raise ValueError(
            "storage_options needs cache_dir and cache_bytes together (a folder on a local disk, and how many bytes "
            f"may lie there), got cache_dir={folder!r:.100}, cache_bytes={cache_bytes!r:.40}"
        )
    if folder is None:
        return rest, Reading(ahead_bytes)
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"cache_dir must be a path, got {folder!r:.100} of type {type(folder).__name__}")
    if not os.fspath(folder) or "://" in os.fspath(folder):
        raise ValueError(f"cache_dir must be a folder on a local disk, got {folder!r:.100}")
    most = check_count("cache_bytes", cache_bytes, at_least=0)
    if most < BLOCK_BYTES:
        raise ValueError(f"cache_bytes={most} would hold nothing: files are kept in blocks of {BLOCK_BYTES} bytes")
    return rest, Reading(ahead_bytes, BlockCache.at(os.fspath(folder), most))


def check_storage_options(options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A copy of ``options``; a cache folder that they name is made.

    Raises: TypeError and ValueError for what torchpipe's keys do not take, OSError for a folder that cannot be made or
    written to.
    """
    if options is None:
        return None
    split_options(options)
    return dict(options)
