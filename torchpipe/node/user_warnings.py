"""Warnings that point at the user's own line, and the announcement of replays.

Runs in every process.

A resume is announced where it is asked for: in the user's process and thread, before anything has started. Snapshots of
a shard therefore say themselves what going on from them replays.
"""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Iterable

from torchpipe.compat.torch_private import COMPILER_FOLDER
from torchpipe.errors import ReplayWarning, StateError
from torchpipe.node.traits import is_ours
from torchpipe.state import Cursor, decode

__all__ = ["COMPRESSED", "REPLAYS", "announce_replay", "announce_replays", "warn_user"]

REPLAYS = "replays"  # in a shard's snapshot: [name, number of items] of what is replayed from there

COMPRESSED = "compressed data in "  # names that begin so are of files, which are decompressed again up to a position


def warn_user(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn as if the innermost frame outside of torchpipe had: that is the line which the user can change."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and (
        is_ours(frame.f_globals.get("__name__")) or frame.f_code.co_filename.startswith(COMPILER_FOLDER)
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def announce_replay(name: str, length: int) -> None:
    """Say, before it starts, that ``length`` items of what ``name`` names are going to be made again."""
    if name.startswith(COMPRESSED):
        warn_user(
            f"{name} can be read from the start alone: about {length} records are decompressed again to resume. Write "
            "it in parts, with bgzip or torchpipe.formats.storage.content.recompress, to resume at once",
            ReplayWarning,
        )
        return
    warn_user(
        f"{name} keeps no state: replaying its first {length} items to resume. Give it state_dict() and "
        "load_state_dict() to resume at once; a node may also be written as a NodeIterator, data be held in a sequence",
        ReplayWarning,
    )


def announce_replays(positions: Iterable[tuple[Cursor, int]]) -> None:
    """Announce what shards replay that go on from these (cursor, items before it), all together: one warning a node.

    Between a snapshot and its cursor, a node is taken to have made as many items for one of the shard's as before.

    Raises: StateError for what is no name or number.
    """
    lengths: Counter[str] = Counter()
    for cursor, count in positions:
        if cursor.snapshot is not None:
            state = decode(cursor.snapshot, keep_opaque=True)
            for name, length in state.get(REPLAYS, ()) if isinstance(state, dict) else ():
                if type(name) is not str or type(length) is not int or length < 0:
                    raise StateError(f"the state says that {name!r:.40} replays {length!r:.40} items: is it damaged?")
                lengths[name] += round(length * count / max(1, count - cursor.skip))
    for name, length in lengths.items():
        announce_replay(name, length)
