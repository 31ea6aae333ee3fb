"""The items of a stream that a loop is handed, and the count of them. Runs in the user's process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchpipe.ahead.iterators import Delivered
from torchpipe.execution.clock import Clock
from torchpipe.execution.merge import MergeIterator
from torchpipe.node.iterator import NodeIterator

__all__ = ["Handing"]

_END = object()


class Handing:
    """``hand`` holds the items that are there, the next one last. Whoever hands it out deletes it, which is the last
    thing that ``next()`` does: only then it counts, so that one that an exception keeps from the loop comes again.

    A merge has such a block of items itself, counts them and has a clock. Of any other stream, there is one item at a
    time, and the state before it.
    """

    def __init__(self, stream: NodeIterator[Any]) -> None:
        self._stream = stream
        self._merge = stream if isinstance(stream, MergeIterator) else None
        self.clock = Clock() if self._merge is None else self._merge.clock
        self._held: list[Any] = []
        self._taken = 0  # items that are there or were taken
        self._pulling = False  # stays True when a pull ended in an exception
        self._before: Callable[[], dict[str, Any]] | None = None

    @property
    def hand(self) -> list[Any]:
        return self._held if self._merge is None else self._merge.block

    def fill(self) -> list[Any]:
        """``hand``, with the next items if it was empty. It stays empty at the end."""
        if self._merge is not None:
            return self._merge.fill()
        if not self._held:
            stream = self._stream
            self._before = stream.state_before if isinstance(stream, Delivered) else stream.state_later()
            self._pulling = True
            self.clock.begin_wait()
            item = next(stream.items(), _END)
            if item is not _END:
                self._taken += 1
                self._held.append(item)
                self.clock.end_wait(1)
            self._pulling = False
        return self._held

    @property
    def taken(self) -> int:
        """The number of items that have been handed out."""
        return self._taken - len(self._held) if self._merge is None else self._merge.delivered

    def state_dict(self) -> dict[str, Any]:
        """The stream's, after what has been handed out."""
        before = self._before if self._held or self._pulling else None
        return self._stream.state_dict() if before is None else before()
