"""An exact state: a snapshot of each shard at the very position, so that a resume makes nothing again.

Runs in the user's process. Whoever makes the items of the shards takes the snapshots: here, where they stand at that
position; or a worker of its own, which begins at the snapshots before it, as a resume would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from torchpipe.errors import StateError, StateMismatchError
from torchpipe.execution.provider import ShardPosition
from torchpipe.execution.shard import Chunk, other_choices
from torchpipe.node.course import course_after
from torchpipe.state import Cursor, decode, encode
from torchpipe.state.rotation import Rotation

__all__ = ["MakeExact", "cursor_from", "item_before", "made_exact", "no_exact"]

MakeExact: TypeAlias = Callable[[Mapping[int, Cursor]], Mapping[int, Cursor]]
"""Of the shards in these places, cursors of the same positions without items to drop. Raises: StateError."""


def made_exact(state: dict[str, Any], shards: int, make: MakeExact) -> dict[str, Any]:
    """``state``, of a main section over so many ``shards``, with exact cursors.

    Raises: StateError where items of the main section itself would have to be made again.
    """
    if Rotation.is_one(state):
        known = Rotation.from_state(state, shards)
        made = make({place: known.cursors[place] for place in known.live if known.cursors[place].skip})
        cursors = tuple(made.get(place, cursor) for place, cursor in enumerate(known.cursors))
        return state | replace(known, cursors=cursors).to_state()
    cursor = Cursor.from_state(state)
    if cursor is not None and cursor.snapshot is not None:
        if cursor.skip:
            raise StateError(
                f"the state is not exact: {cursor.skip} items that nodes behind the shards have made in this process "
                "are made again. Put these nodes before to_device(), or save after an item that did not raise"
            )
        inner = made_exact(decode(cursor.snapshot, allow_pickle=True), shards, make)
        return state | replace(cursor, snapshot=encode(inner)).to_state()
    inputs = state.get("inputs")
    if not isinstance(inputs, list):
        return state
    return state | {"inputs": [made_exact(item, shards, make) for item in inputs]}


def item_before(shard: int, cursor: Cursor) -> ShardPosition:
    """Where the last item before ``cursor`` is next: who begins there makes it, and takes a snapshot behind it."""
    before = Cursor(cursor.snapshot, cursor.skip - 1)
    return ShardPosition(shard=shard, cursor=before, count=cursor.count - 1, lane=shard, snapshot_first=True)


def cursor_from(chunk: Chunk, shard: int, cursor: Cursor, words: str) -> Cursor:
    """``cursor`` with the snapshot of ``chunk``, which is the first one from :func:`item_before`; ``words``: its items.

    Raises: StateError if it carries none; StateMismatchError if it was not made as the item before was.
    """
    if chunk.error is not None:
        error = chunk.error
        raise no_exact(shard, cursor.count, f"{type(error).__name__}: {error}") from error
    if not chunk.items or (chunk.choices and cursor.course not in (None, course_after(chunk.choices, 1))):
        raise StateMismatchError(other_choices(shard, cursor.count, words))
    if chunk.notice is not None or chunk.snapshot is None:
        raise no_exact(shard, cursor.count, str(chunk.notice))
    return Cursor(chunk.snapshot, 0, cursor.count, cursor.course)


def no_exact(shard: int, items: int, reason: str) -> StateError:
    return StateError(
        f"there is no exact state of shard {shard} after item {items}: {reason}. Take it a few items later, or save "
        "without exact=True"
    )
