"""An exact state: a snapshot of each shard at the very position, so that a resume makes nothing again.

Runs in the user's process, which makes the items since the last snapshots once more, by the code that made them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torchpipe.errors import StateError
from torchpipe.execution.shard import Shard
from torchpipe.randomness.global_random import GlobalRandom, RandomStates
from torchpipe.state import Cursor, decode, encode
from torchpipe.state.rotation import Rotation

__all__ = ["made_exact"]


def made_exact(state: dict[str, Any], shards: int, shard: Callable[[int], Shard]) -> dict[str, Any]:
    """``state``, of a main section over so many ``shards``, with exact cursors; ``shard`` makes the one of a number.

    Raises: StateError where items of the main section itself would have to be made again.
    """
    if Rotation.is_one(state):
        known = Rotation.from_state(state, shards)
        cursors = tuple(_exact(cursor, shard, number) for number, cursor in enumerate(known.cursors))
        return state | replace(known, cursors=cursors).to_state()
    cursor = Cursor.from_state(state)
    if cursor is not None and cursor.snapshot is not None:
        if cursor.skip:
            raise StateError(
                f"the state is not exact: {cursor.skip} items that nodes behind the shards have made in this process "
                "are made again. Put these nodes before to_device(), or save after an item that did not raise"
            )
        inner = made_exact(decode(cursor.snapshot, allow_pickle=True), shards, shard)
        return state | replace(cursor, snapshot=encode(inner)).to_state()
    inputs = state.get("inputs")
    if not isinstance(inputs, list):
        return state
    return state | {"inputs": [made_exact(item, shards, shard) for item in inputs]}


def _exact(cursor: Cursor, shard: Callable[[int], Shard], number: int) -> Cursor:
    if not cursor.skip:
        return cursor
    with GlobalRandom.at(RandomStates.now()):
        made = shard(number)
        try:
            return made.within(lambda: made.exact(cursor))
        finally:
            made.within(made.close)
