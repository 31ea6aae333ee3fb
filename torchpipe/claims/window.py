"""The open claims: what was given and is not done yet, what comes back, and the results that are kept.

Runs in the user's process. It knows no loader. ``lock`` guards all of it: claims end in any thread.
"""

from __future__ import annotations

import asyncio
import operator
import secrets
import threading
import time
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from torchpipe.claims.saved import Item
from torchpipe.node.user_warnings import warn_user
from torchpipe.node.validate import check_seconds
from torchpipe.state.codec import encode
from torchpipe.state.copying import copy_item

__all__ = ["Claim", "ClaimStats", "Number", "Window", "are_open"]

T = TypeVar("T")

_PATIENCE_S = 60.0


class Number(NamedTuple):
    """The number of a claim: ``ordinal`` counts the items of ``epoch`` from 0 on, the same for every number of workers.
    ``giving`` tells an item that is given again from the time before, in a run that was resumed too; ``version`` is how
    often ``advance()`` had been called.
    """

    epoch: int
    ordinal: int
    giving: int
    version: int


@dataclass(frozen=True, eq=False)
class Claim(Generic[T]):
    """An item that somebody works on. Open until :meth:`done` or :meth:`drop`, also if nobody holds it any more.

    ``number`` and ``item`` can be sent to another process (the claim itself as well); whoever has the
    :class:`~torchpipe.claims.Claims` says there ``claims.done(number, result)``. It keeps no loader alive.
    """

    item: T
    number: Number
    _of: Window[T] | None = field(default=None, repr=False)

    @property
    def epoch(self) -> int:
        return self.number.epoch

    @property
    def ordinal(self) -> int:
        return self.number.ordinal

    @property
    def version(self) -> int:
        return self.number.version

    def done(self, result: Any = None) -> bool:
        """Finish the claim, as :meth:`Claims.done`. Raises: RuntimeError in another process than that of the loader."""
        return self._owner("done").done(self.number, result)

    def drop(self, reason: str = "") -> bool:
        """Drop the claim, as :meth:`Claims.drop`. Raises: RuntimeError in another process than that of the loader."""
        return self._owner("drop").drop(self.number, reason)

    def _owner(self, method: str) -> Window[T]:
        if self._of is None:
            raise RuntimeError(
                f"this is a copy of a claim: send its number back, and say claims.{method}(number) in the process that "
                "has the loader"
            )
        return self._of

    def __reduce__(self) -> tuple[Any, ...]:
        return Claim, (self.item, self.number)


@dataclass(frozen=True, kw_only=True)
class ClaimStats:
    """The figures of the claims of this run, resumes included. ``oldest_s``: since the oldest open one was given;
    ``waited_s``: how long ``next`` has waited for one to be done. ``passed``: items of a resume that were done before.
    ``reasons``: how many were dropped for each.
    """

    open: int
    done: int
    dropped: int
    again: int
    passed: int
    reasons: dict[str, int]
    oldest_s: float
    waited_s: float


@dataclass(slots=True)
class _Open:
    """A claim that is open; a copy of the ``item`` is kept only where it may have to be given again.

    ``giving`` is 0 while it waits for that.
    """

    giving: int
    version: int
    since: float
    item: Any
    calls: int = 0
    results: list[Any] = field(default_factory=list)


class Window(Generic[T]):
    """At most ``ahead`` open claims; whoever finishes one makes room for another. Whoever gives claims sets these."""

    ahead: int
    groups: int
    timeout: float | None
    max_staleness: int | None
    drops_stale: bool
    keeps_results: bool

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._futures: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()  # of tasks that wait
        self._warned = False
        self.waited_s = 0.0
        self.reset()

    def reset(self) -> None:
        """Nothing was given yet."""
        self._givings = range(first := 1 + secrets.randbits(48), first)  # not those of the run before
        self.open: dict[Item, _Open] = {}
        self.back: deque[Item] = deque()  # of these, those to be given again in this process
        self.unseen: set[Item] = set()  # open in a loaded state, or lost by an interrupt: a resume gives them
        self.results: deque[tuple[Item, list[Any]]] = deque()
        self.version = 0
        self.counts = {"done": 0, "dropped": 0, "again": 0, "passed": 0}
        self.reasons: dict[str, int] = {}

    # -- giving, by whoever holds the lock -----------------------------------------------------------------------------

    def give(self, at_hand: tuple[Item, T] | None) -> Claim[T] | None:
        """Give the item that has come back first, or else the one at hand."""
        if self.back:
            item = self.back.popleft()
            entry = self.open[item]
            value = copy_item(entry.item)
        elif at_hand is None:
            return None
        else:
            item, value = at_hand
            may_come_back = self.max_staleness is not None and not self.drops_stale
            entry = _Open(0, 0, 0.0, copy_item(value) if may_come_back else None)
        entry.giving, entry.version, entry.since = self._givings.stop, self.version, time.monotonic()
        self._givings = range(self._givings.start, entry.giving + 1)
        # A state that is asked for in the midst of this, by a signal handler, finds it open in any case
        self.open[item] = entry
        self.unseen.discard(item)
        return Claim(value, Number(*item, entry.giving, entry.version), self)

    def sleep(self, began: float) -> None:
        """Until something has changed. Raises: TimeoutError, if whoever ``began`` to wait has no patience any more."""
        patience, asleep = self._patience(began), time.monotonic()
        try:
            self._changed.wait(patience)
        finally:
            self.waited_s += time.monotonic() - asleep

    def sleeping(self, began: float) -> Coroutine[Any, Any, None]:
        """A sleep as that of :meth:`sleep`, to be awaited as soon as the lock is let go of."""
        patience, loop = self._patience(began), asyncio.get_running_loop()
        entry = loop, loop.create_future()
        self._futures.add(entry)
        return self._sleeping(entry, patience)

    async def _sleeping(self, entry: tuple[Any, asyncio.Future[None]], patience: float | None) -> None:
        asleep = time.monotonic()
        try:
            await asyncio.wait([entry[1]], timeout=patience)
        finally:
            with self.lock:
                self._futures.discard(entry)
                self.waited_s += time.monotonic() - asleep

    def _patience(self, began: float) -> float | None:
        """The seconds that may still be waited; None: without end. Raises: TimeoutError, if none."""
        waited = time.monotonic() - began
        if self.timeout is not None:
            if waited >= self.timeout:
                raise TimeoutError(self._who_is_late(f"none was done within {self.timeout} s"))
            return self.timeout - waited
        if waited >= _PATIENCE_S and not self._warned:
            self._warned = True
            warn_user(self._who_is_late(f"next() has waited {_PATIENCE_S:.0f} s for one"), UserWarning)
        return None if self._warned else _PATIENCE_S - waited

    def _who_is_late(self, what: str) -> str:
        epoch, ordinal = min(self.open)
        return (
            f"{are_open(self.open)} (ahead={self.ahead}), and {what}; the oldest is item {ordinal} of epoch {epoch}. "
            "Call done() or drop() for those that are finished, or raise ahead="
        )

    def wake(self) -> None:
        """Whoever waits looks again."""
        self._changed.notify_all()
        for loop, future in self._futures:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(future.cancel)  # for asyncio.wait, it is done then

    # -- finishing, by anybody: what these are for, Claims says --------------------------------------------------------

    def wait(self, timeout: float | None) -> None:
        most = None if timeout is None else check_seconds("timeout", timeout)
        with self.lock:
            if not self._changed.wait_for(lambda: len(self.open) == len(self.back), most):
                raise TimeoutError(self._who_is_late(f"not all were done within {timeout} s"))

    def done(self, number: Any, result: Any) -> bool:
        with self.lock:
            item, entry = self._named(number)
            if entry is None:
                return False
            if self._is_late(entry.version):
                self._take_back(item, entry)
                return False
            if self.keeps_results:
                entry.results.append(_kept(result))
            entry.calls += 1
            if entry.calls == self.groups:
                if self.keeps_results:
                    self.results.append((item, entry.results))
                self.counts["done"] += 1
                del self.open[item]
                self.wake()
            return True

    def _take_back(self, item: Item, entry: _Open) -> None:
        """Its result came too late."""
        if self.drops_stale:
            self._drop(item, "stale")
            return
        entry.giving, entry.calls, entry.results = 0, 0, []
        self.counts["again"] += 1
        self.back.append(item)
        self.wake()

    def drop(self, number: Any, reason: str) -> bool:
        if not isinstance(reason, str):
            raise TypeError(f"reason must be a text, got {reason!r}")
        with self.lock:
            item, entry = self._named(number, waits=True)
            if entry is None:
                return False
            if not entry.giving:
                self.back.remove(item)
            self._drop(item, reason)
            return True

    def _drop(self, item: Item, reason: str) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        self.counts["dropped"] += 1
        del self.open[item]
        self.wake()

    def _named(self, number: Any, *, waits: bool = False) -> tuple[Item, _Open | None]:
        """The item and entry that ``number`` names; one that ``waits`` to be given again, if so asked. No entry:
        somebody else has it, it was dropped when a result came too late, or the run before gave it.
        """
        item, giving, version = _numbers(number)
        entry = self.open.get(item)
        if entry is not None and (giving in (None, entry.giving) if entry.giving else waits):
            return item, entry
        if giving is not None and (entry is not None or giving not in self._givings or self._is_late(version)):
            return item, None
        if entry is not None:
            why = "its result came too late, and it was not given again yet"
        elif item in self.unseen:
            why = "since the state was loaded it was not given yet"
        else:
            why = "it is done or dropped already, or was never given"
        raise ValueError(f"item {item[1]} of epoch {item[0]} is not open: {why}")

    def _is_late(self, version: int) -> bool:
        return self.max_staleness is not None and self.version - version > self.max_staleness


def _kept(result: Any) -> Any:
    """A copy. Raises: TypeError for what no state could hold."""
    try:
        encode(result)
    except Exception as error:
        raise TypeError(
            f"with keep_results=True a result is plain data, which a state can hold: {result!r:.200}"
        ) from error
    return copy_item(result)


def _numbers(number: Any) -> tuple[Item, int | None, int]:
    """The item, and, if ``number`` tells them, its giving and version. Raises: TypeError."""
    try:
        parts = [*map(operator.index, number.number if isinstance(number, Claim) else number)]
    except TypeError:
        parts = []
    if len(parts) == 2:
        return (parts[0], parts[1]), None, 0
    if len(parts) == len(Number._fields):
        return (parts[0], parts[1]), parts[2], parts[3]
    raise TypeError(f"a claim is named by its number, claim.number, or by (epoch, ordinal); got {number!r:.200}")


def are_open(claims: Any, of: str = "") -> str:
    return f"1 claim{of} is open" if len(claims) == 1 else f"{len(claims)} claims{of} are open"
