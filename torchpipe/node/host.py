"""The environment of a pass, from its runner: in process, a worker, a test.

Runs in every process that executes a part of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from torchpipe.node.ownership import is_strict
from torchpipe.node.user_warnings import warn_user
from torchpipe.state import LeftOut, SnapshotPolicy

__all__ = ["Host", "Memory", "Renumbered", "Trace"]

# What gives an array of so many bytes to make a large item in, from where it travels without a copy; None if there is
# no such place just now.
Memory: TypeAlias = Callable[[int], Any]


class Trace(Protocol):
    """Notes which node is at work: for naming it after a crash, or for what it takes."""

    def watch(self, stream: Any, node_id: int) -> Any:
        """``stream``, with ``node_id`` noted while it is being pulled."""

    def plain(self, stream: Any) -> Any:
        """The stream to pull instead of ``stream``, which :meth:`watch` gave, from the next item on."""

    def left_out(self, node_id: int) -> None:
        """The node has left out an item, since making it raised."""


class Renumbered:
    """``trace``, for nodes that have other numbers in it."""

    def __init__(self, trace: Trace, numbers: Mapping[int, int]) -> None:
        self._trace, self._numbers = trace, numbers
        self.plain = trace.plain

    def watch(self, stream: Any, node_id: int) -> Any:
        return self._trace.watch(stream, self._numbers[node_id]) if node_id in self._numbers else stream

    def left_out(self, node_id: int) -> None:
        if node_id in self._numbers:
            self._trace.left_out(self._numbers[node_id])


@dataclass(frozen=True, kw_only=True)
class Host:
    """The environment of a pass, from its runner.

    ``threads`` says whether nodes may run ahead in threads of their own; ``allow_pickle`` whether states being loaded
    may hold pickles; ``announces`` whether iterators say what they replay. ``memory``, if there is one, is where large
    items are best made; ``supply`` is where dispatched items come from; ``policy`` says when snapshots are due.
    ``on_left_out`` is told of each item that is left out and noted, ``on_again`` of each that is made again to be
    dropped, ``warn`` of what the user is to know. ``encodes``: each state is encoded before anything
    else happens. ``strict``: items that nodes keep are looked after.
    """

    threads: bool = True
    allow_pickle: bool = False
    announces: bool = True
    trace: Trace | None = None
    memory: Memory | None = None
    supply: Any = None
    encodes: bool = False
    strict: bool = field(default_factory=is_strict)
    policy: Callable[[], SnapshotPolicy] = SnapshotPolicy
    on_left_out: Callable[[LeftOut], None] | None = None
    on_again: Callable[[], None] | None = None
    warn: Callable[..., None] = warn_user
