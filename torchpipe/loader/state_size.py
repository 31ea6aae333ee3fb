"""The size of states, and the node that fills one that is too large.

Runs in the user's process. A state is looked into once, when the first large one is saved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from torchpipe.errors import LargeStateWarning, StateError
from torchpipe.graph import plan
from torchpipe.machine import format_bytes
from torchpipe.node.announce import warn_user
from torchpipe.node.traits import DataPipe, inputs_of, node_name
from torchpipe.state import Cursor, decode, encode

__all__ = ["StateSizes"]

_MUCH_BYTES = 100_000_000


class StateSizes:
    """``last_bytes``: of the state that was saved last, None before. The first large one is told."""

    def __init__(self) -> None:
        self.last_bytes: int | None = None
        self._warned = False

    def note(self, state: dict[str, Any], graph: DataPipe) -> None:
        payload = state["payload"]
        self.last_bytes = len(payload)
        if self._warned or self.last_bytes < _MUCH_BYTES:
            return
        self._warned = True
        holds = ""
        with suppress(StateError, LookupError, TypeError, ValueError):  # nobody's state is lost for a warning
            name, size = _filled_by(payload, graph)
            if 2 * size > self.last_bytes:
                holds = f": most of it is what {name} holds, {format_bytes(size)} in {state['num_shards']} shards"
        warn_user(
            f"the state has {format_bytes(self.last_bytes)}{holds}. Give nodes that hold items a smaller buffer, or "
            "let them stand before those that make the items larger (what decodes or tokenizes); a shuffle() right "
            "behind a reader of files is in the state by the numbers of its items. loader.stats().state_bytes has the "
            "size of each state",
            LargeStateWarning,
        )


def _filled_by(payload: bytes, graph: DataPipe) -> tuple[str, int]:
    """The node of which all shards' states hold most, and how many bytes. Raises: ValueError, LookupError where that
    cannot be told.
    """
    (cut,) = plan(graph).cuts
    snapshots = _snapshots(decode(payload, keep_opaque=True)["position"])
    sizes: Counter[int] = Counter()  # by the ids of nodes
    names: dict[int, str] = {}
    waiting: list[tuple[Any, DataPipe]] = [(snapshot["iterator"], cut) for snapshot in snapshots]
    while waiting:
        state, node = waiting.pop()
        if (cursor := Cursor.from_state(state)) is not None:
            state = {} if cursor.snapshot is None else decode(cursor.snapshot, keep_opaque=True)
        if not isinstance(state, dict):
            continue
        names[id(node)] = node_name(node)
        sizes[id(node)] += len(encode({key: value for key, value in state.items() if key != "inputs"}))
        waiting += zip(state.get("inputs", ()), inputs_of(node))
    ((most, size),) = sizes.most_common(1)
    return names[most], size


def _snapshots(position: Any) -> Iterator[Any]:
    """The snapshots in the cursors of shards, opened."""
    if isinstance(position, Cursor):
        if position.snapshot is not None:
            yield decode(position.snapshot, keep_opaque=True)
    elif isinstance(position, dict):
        for value in position.values():
            yield from _snapshots(value)
    elif isinstance(position, list):
        for value in position:
            yield from _snapshots(value)
