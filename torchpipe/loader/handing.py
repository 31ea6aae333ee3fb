"""The items that a loop is handed, and the count of them, for every loader. Runs in the user's process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torchpipe.ahead.iterators import Delivered
from torchpipe.execution.clock import Clock
from torchpipe.execution.merge import MergeIterator
from torchpipe.node.iterator import NodeIterator

__all__ = ["Handing", "StreamHanding"]


class Handing(ABC):
    """The items of an epoch, from a position on. Pulled by one thread at a time.

    ``hand`` holds those that are there, the next one last. Whoever hands one out deletes it, which is the last thing
    that ``next()`` does: only then it counts, so that one that an exception keeps from the loop comes again.
    """

    clock: Clock  # of whoever takes them
    hand: list[Any]

    @property
    @abstractmethod
    def number(self) -> int:
        """The number of items of the epoch that are past."""

    @abstractmethod
    def position(self) -> dict[str, Any]:
        """The plain data by which a resume goes on behind them."""

    def ready(self) -> list[Any]:
        """``hand``, with the next item in it. Raises: StopIteration at the end; what ends the epoch."""
        return self.hand or self.fill()

    @abstractmethod
    def fill(self) -> list[Any]:
        """The next items, as from :meth:`ready`, where the hand is empty."""

    def pass_over(self, count: int) -> int:
        """Pass over ``count`` items more, or all there are: how many. Raises: the error that ends the epoch."""
        passed = 0
        with suppress(StopIteration):
            while passed < count:
                del self.ready()[-1]
                passed += 1
        return passed

    def interrupt(self) -> None:
        """Make a :meth:`ready` that waits in another thread return at once. Thread-safe."""
        return

    @abstractmethod
    def close(self) -> None:
        """The epoch is over, or nobody wants more of it. Idempotent."""


class StreamHanding(Handing):
    """The items of the stream of a graph, of which ``before`` are past when it begins.

    A merge has a block of them, counts them and has a clock. Of any other stream, there is one item at a time, and the
    state before it.
    """

    def __init__(self, stream: NodeIterator[Any], before: int) -> None:
        self.stream = stream
        self._merge = stream if isinstance(stream, MergeIterator) else None
        self.clock = Clock() if self._merge is None else self._merge.clock
        self._held: list[Any] = []
        self._behind = before  # items that are there or past
        self._pulling = False  # stays True when a pull ended in an exception
        self._before: Callable[[], dict[str, Any]] | None = None

    @property
    def hand(self) -> list[Any]:  # type: ignore[override]
        return self._held if self._merge is None else self._merge.block

    @property
    def number(self) -> int:
        return self._behind - len(self._held) if self._merge is None else self._merge.delivered

    def fill(self) -> list[Any]:
        if self._merge is not None:
            if block := self._merge.fill():
                return block
            raise StopIteration
        stream = self.stream
        self._before = stream.state_before if isinstance(stream, Delivered) else stream.state_later()
        self._pulling = True
        self.clock.begin_wait()
        try:
            item = next(stream.items())
        except StopIteration:
            self._pulling = False
            raise
        self._behind += 1
        self._held.append(item)
        self.clock.end_wait(1)
        self._pulling = False
        return self._held

    def position(self) -> dict[str, Any]:
        before = self._before if self._held or self._pulling else None
        return self.stream.state_dict() if before is None else before()

    def interrupt(self) -> None:
        self.stream.interrupt()

    def close(self) -> None:
        self.stream.close()
