"""Claims: a loader's items for consumers that run ahead and finish out of order, with a state of what is finished.

Runs in the user's process. A loader's own state counts what it has handed out. Where items are taken far ahead and
finish in any order (rollouts, generation, scoring), a resume from it would skip what was still open. A claim is open
until it is done or dropped, whoever finishes first.

Threads: one pulls items (``EpochOfClaims.lock``) and waits for nobody else; what is open, and what comes next, changes
under ``Claims._lock`` alone. A loop that is over writes nothing more: what it still pulls counts as not taken.
"""

from __future__ import annotations

import asyncio
import operator
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, TypeVar

from torchpipe.errors import IteratorInvalidated
from torchpipe.loader.claims_state import Item, SavedClaims
from torchpipe.loader.epochs import Live, Loaded, Parked
from torchpipe.node.announce import warn_user
from torchpipe.node.validate import check_choice, check_count, check_seconds
from torchpipe.randomness.global_random import may_change_states
from torchpipe.state.codec import encode
from torchpipe.state.copying import copy_item

if TYPE_CHECKING:
    from typing import Protocol

    from torchpipe.loader.epochs import Epochs

    class _Loader(Protocol):
        _epochs: Epochs[Any]

        @property
        def epoch(self) -> int: ...

        def _coming_number(self) -> tuple[int, int]: ...

        def _position_now(self) -> Any: ...

        def _state_at(self, position: Any) -> dict[str, Any]: ...

        def _tell_opaque(self, payload: bytes) -> None: ...

        def set_epoch(self, epoch: int) -> None: ...

        def _own_pace(self) -> str: ...

        def _makes_items(self) -> bool: ...

        def _ranks_of_claims(self) -> list[int]: ...

        def _iterate_claims(self, claims: Any) -> Any: ...

        def _load_for_claims(self, state: dict[str, Any], allow_pickle: bool) -> None: ...

        def _forget_claims(self, claims: Any) -> None: ...


__all__ = ["Claim", "ClaimStats", "Claims", "EpochOfClaims", "Number"]

T = TypeVar("T")

_PATIENCE_S = 60.0
_REMEMBERED = 8  # positions that are remembered while as many items are taken as may be open


class Number(NamedTuple):
    """Which claim: ``ordinal`` counts the items of ``epoch`` from 0 on, the same for every number of workers.
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
    :class:`Claims` says there ``claims.done(number, result)``.
    """

    item: T
    number: Number
    _of: Claims[T] | None = field(default=None, repr=False)

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
        """As :meth:`Claims.done`. Raises: RuntimeError in another process than that of the loader."""
        return self._owner("done").done(self.number, result)

    def drop(self, reason: str = "") -> bool:
        """As :meth:`Claims.drop`. Raises: RuntimeError in another process than that of the loader."""
        return self._owner("drop").drop(self.number, reason)

    def _owner(self, method: str) -> Claims[T]:
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
    """What has become of the claims of this run, resumes included. ``oldest_s``: since the oldest open one was given;
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


class _Rest(NamedTuple):
    """What a state leaves of an epoch: from ``first`` on, where ``state`` takes the loader; None: it begins there."""

    first: Item
    state: dict[str, Any] | None


class Claims(Generic[T]):
    """The items of a loader as claims. ``for claim in claims`` is one epoch, as with the loader.

    One thread iterates (or one asyncio task, by ``async for``); :meth:`done`, :meth:`drop` and :meth:`state_dict` may
    be called from any thread. What is open when the loop ends stays open, and counts in the next epoch. What the loader
    passes over when it raises (a sample of a map-style dataset), claims pass over as well.

    Made by ``loader.claims(...)``, whose arguments these are:

    Args:
        ahead: the most claims that are open: ``next`` waits until one is done or dropped.
        groups: so many times a claim has to be ``done`` until it is (rollouts of one prompt).
        timeout: seconds that ``next`` waits; None: without end (with a warning after a minute).
        max_staleness: a result that arrives after more calls of :meth:`advance` than that does not count.
        stale: what becomes of such a claim: ``"again"``, it is given again, before new ones; ``"drop"``. If it comes
            back when the loop has ended, the next ``for`` gives what has come back, and no more.
        keep_results: copies of results are kept, with the state too, until :meth:`take` takes them. They must be plain
            data.

    State: :meth:`state_dict`, which is also what the loader's gives as long as claims are at work. A resume gives the
    open claims again, in order, and goes on behind the last one given. It makes the items between the oldest open one
    and the last one again, and those of up to ``ahead / 8`` more.

    Raises: TypeError or ValueError for arguments out of range, for a loader whose items come in any order, and for one
    whose ranks wait for each other.
    """

    def __init__(
        self,
        loader: _Loader,
        ahead: int = 64,
        *,
        groups: int = 1,
        timeout: float | None = None,
        max_staleness: int | None = None,
        stale: Literal["again", "drop"] = "again",
        keep_results: bool = False,
    ) -> None:
        if not getattr(loader, "in_order", True):
            raise ValueError(
                "claims need in_order=True: with in_order=False items have no number that another run would give them"
            )
        if advice := loader._own_pace():
            raise ValueError(
                "each rank takes claims at its own pace, and the ranks of this loader begin epochs together: " + advice
            )
        check_choice("stale", stale, ("again", "drop"))
        self._loader = loader
        self._ahead = check_count("ahead", ahead, at_least=1)
        self._groups = check_count("groups", groups, at_least=1)
        self._max_staleness = None if max_staleness is None else check_count("max_staleness", max_staleness, at_least=0)
        self._timeout = None if timeout is None else check_seconds("timeout", timeout)
        self._drops_stale = stale == "drop"
        self._keeps_results = bool(keep_results)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._futures: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()  # of tasks that wait
        self._beginning = threading.Lock()
        self._closed = self._warned = self._allow_pickle = False
        self._waited_s = 0.0
        self._reset()

    def _reset(self) -> None:
        """Nothing was given yet."""
        self._givings = range(first := 1 + secrets.randbits(48), first)  # not those of the run before
        self._loop: Callable[[], EpochOfClaims[T] | None] = _nobody  # the one at work, unless it was dropped (break)
        self._next: Item | None = None  # what it gives next, or what the last one would have; None: none has begun
        self._open: dict[Item, _Open] = {}
        self._back: deque[Item] = deque()  # of these, those to be given again in this process
        self._results: deque[tuple[Item, list[Any]]] = deque()
        self._positions: list[tuple[Item, Any]] = []  # of the loader, each before that item, as time went
        self.as_loaded: SavedClaims | None = None  # until a loop has begun
        self._rests: dict[int, _Rest] = {}  # of the loaded state: of the epochs that no loop has begun yet
        self._finished_to: Item | None = None  # of it, while loops go on with it: what is before was finished
        self._left_open: set[Item] = set()  # but for these, and what an interrupt has lost: a resume gives them
        self._version = 0
        self._counts = {"done": 0, "dropped": 0, "again": 0, "passed": 0}
        self._reasons: dict[str, int] = {}

    # -- taking --------------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that the next ``for`` gives claims of, or the one at work: ``while claims.epoch < epochs``."""
        with self._lock:
            back = min(self._back, default=None)
        return self._loader.epoch if back is None else back[0]

    def __iter__(self) -> EpochOfClaims[T]:
        """Begin the next epoch, or go on with the rest of a loaded one; or what has come back, if there is any.

        Raises: RuntimeError where open claims would be lost; IteratorInvalidated after :meth:`close`.
        """
        with self._beginning:
            self._check_open()
            if not self._back:
                return self._begin()
            with self._lock:
                return self._at_work(EpochOfClaims(self, None, None))

    def __aiter__(self) -> AsyncIterator[Claim[T]]:
        return _Asynchronous(self)

    def _begin(self) -> EpochOfClaims[T]:
        """The loader's next epoch."""
        first, rest, resumes = self._coming()
        self._check_nothing_is_lost(first, resumes)
        if resumes and rest is None:
            self._loader.set_epoch(first[0] + 1)
            with self._lock:
                self._check_open()
                self._next = first
                return self._at_work(EpochOfClaims(self, None, None))
        if rest is not None and rest.state is not None and not self._stands_in_a_rest():
            self._loader._load_for_claims(rest.state, self._allow_pickle)
        stream = self._loader._iterate_claims(self)
        position = self._loader._position_now()
        with self._lock:
            self._check_open()
            self.as_loaded = None
            self._rests = {epoch: later for epoch, later in self._rests.items() if resumes and epoch > first[0]}
            if not resumes:
                self._finished_to = None
            loop = self._at_work(EpochOfClaims(self, stream, self._finished_to))
            self._remember(position)
            return loop

    def _at_work(self, loop: EpochOfClaims[T]) -> EpochOfClaims[T]:
        """As the loader's own iterator, it ends when nobody holds it any more, and what it has at hand with it. Whoever
        waits for room in an older one is told.
        """
        self._loop = weakref.ref(loop)
        self._wake()
        return loop

    def _stands_in_a_rest(self) -> bool:
        """True if the loader's next loop is the rest of an epoch, to where it was taken by a state."""
        return isinstance(self._loader._epochs.coming, Loaded)

    def _coming(self) -> tuple[Item, _Rest | None, bool]:
        """Where the next ``for`` begins; what is left of that epoch in the loaded state, nothing if it was finished;
        whether it is one of that state. An epoch that the user has set is that epoch, as with the loader.
        """
        first = self._loader._coming_number()
        rest = self._rests.get(first[0])
        if rest is not None:
            return first if self._stands_in_a_rest() else rest.first, rest, True
        between = self._rests and self._next is not None and self._next[0] < first[0] < max(self._rests)
        return first, None, bool(between)

    def _check_nothing_is_lost(self, first: Item, resumes: bool) -> None:
        with self._lock:
            twice = [item for item in self._open if item >= first]
            lost = [item for item in self._left_open if item < first or not resumes]
        if twice:
            raise RuntimeError(
                f"{_number_of(twice)} of epoch {max(twice)[0]} {_are(twice)} open, and epoch {first[0]} would begin "
                f"again from item {first[1]}: let them be done, or call close()"
            )
        if lost:
            raise RuntimeError(
                f"{_number_of(lost)} of epoch {min(lost)[0]} {_are(lost)} open in the state and {_were(lost)} not "
                f"given yet, and epoch {first[0]} would begin without them: load the state and take them before you "
                "leave that epoch, or call close()"
            )

    def _look(self, loop: EpochOfClaims[T]) -> bool:
        """True once there is a claim to give. The item is made before there is room for it: an epoch ends at once."""
        with loop.lock:
            while True:
                with self._lock:
                    if loop.over:
                        return False
                    self._check_at_work(loop)
                    if self._back or loop.at_hand is not None:
                        return True
                    if loop.stream is not None and self._has_no_more(loop):
                        loop.stream = None
                        self._loader.set_epoch(loop.epoch + 1)
                    if loop.stream is None:
                        loop.over = True
                        return False
                if loop.since_remembered * _REMEMBERED >= self._ahead:
                    position = self._loader._position_now()
                    with self._lock:
                        self._check_at_work(loop)
                        self._remember(position)
                        loop.since_remembered = 0
                self._pull(loop)

    def _pull(self, loop: EpochOfClaims[T]) -> None:
        """Have the next item at hand, unless it is one that was finished before."""
        assert self._next is not None
        stream, expected = loop.stream, self._next
        try:
            value = next(stream)
            with self._lock:
                self._check_at_work(loop)
                item = (loop.epoch, stream.delivered - 1)
                loop.since_remembered += 1
                if self._was_finished(loop, item):
                    self._counts["passed"] += 1
                    self._next = (item[0], item[1] + 1)
                else:
                    self._next, loop.at_hand = item, (item, value)
        except StopIteration:
            loop.stream = None
        except BaseException as error:
            failed = loop.epoch, stream.delivered
            if isinstance(error, Exception) and stream.goes_on and self._was_finished(loop, failed):
                return  # the run before has passed over it, too
            with self._lock:
                taken = loop is self._loop() and loop.at_hand is None and stream.delivered > expected[1]
                if taken and not isinstance(error, Exception) and not self._was_finished(loop, expected):
                    self._left_open.add(expected)  # an interrupt has taken it on its way
            raise

    def _has_no_more(self, loop: EpochOfClaims[T]) -> bool:
        """True if the run of the loaded state had left this epoch, and all that was open of it has been given."""
        left = loop.finished_to is not None and loop.finished_to[0] > loop.epoch
        return left and not any(item[0] == loop.epoch for item in self._left_open)

    def _was_finished(self, loop: EpochOfClaims[T], item: Item) -> bool:
        return loop.finished_to is not None and item < loop.finished_to and item not in self._left_open

    def _has_room(self, loop: EpochOfClaims[T]) -> bool:
        self._check_at_work(loop)
        return len(self._open) - len(self._back) < self._ahead

    def _take(self, loop: EpochOfClaims[T]) -> Claim[T] | None:
        """A claim, if there is room. None: another thread has taken it."""
        giving, now = self._givings.stop, time.monotonic()
        self._givings = range(self._givings.start, giving + 1)
        if self._back:
            item = self._back.popleft()
            entry = self._open[item]
            entry.giving, entry.version, entry.since = giving, self._version, now
            return Claim(copy_item(entry.item), Number(*item, giving, self._version), self)
        if loop.at_hand is None:
            return None
        item, value = loop.at_hand
        may_come_back = self._max_staleness is not None and not self._drops_stale
        # A state that is asked for in the midst of this, by a signal handler, finds it open in any case
        self._open[item] = _Open(giving, self._version, now, copy_item(value) if may_come_back else None)
        self._left_open.discard(item)
        self._next, loop.at_hand = (item[0], item[1] + 1), None
        return Claim(value, Number(*item, giving, self._version), self)

    def _given(self, loop: EpochOfClaims[T]) -> Claim[T]:
        while self._look(loop):
            began = time.monotonic()
            with self._lock:
                try:
                    while not self._has_room(loop):
                        self._changed.wait(self._patience(began))
                finally:
                    self._waited_s += time.monotonic() - began
                if (claim := self._take(loop)) is not None:
                    return claim
        raise StopIteration

    async def _given_to_task(self, task: _Asynchronous[T]) -> Claim[T]:
        while await self._looked(task):
            loop = task.loop()
            began = time.monotonic()
            while True:
                with self._lock:
                    if self._has_room(loop):
                        if (claim := self._take(loop)) is not None:
                            return claim
                        break
                    patience, asleep = self._patience(began), time.monotonic()  # of claims that are open by now
                    event_loop = asyncio.get_running_loop()
                    entry = event_loop, event_loop.create_future()
                    self._futures.add(entry)
                try:
                    await asyncio.wait([entry[1]], timeout=patience)
                finally:
                    with self._lock:
                        self._futures.discard(entry)
                        self._waited_s += time.monotonic() - asleep
        raise StopAsyncIteration

    async def _looked(self, task: _Asynchronous[T]) -> bool:
        """As :meth:`_look`. An item may take long to make, and then stays at hand. What this process makes is made in
        this thread, under the random states that are its own.
        """
        try:
            if may_change_states() and self._loader._makes_items():
                return self._look(task.loop())
            return await asyncio.to_thread(lambda: self._look(task.loop()))
        except StopAsyncIteration as error:
            raise RuntimeError("the loader's code has raised StopAsyncIteration, which would end the loop") from error

    def _patience(self, began: float) -> float | None:
        """How many seconds more may be waited for; None: without end. Raises: TimeoutError, if none."""
        waited = time.monotonic() - began
        if self._timeout is not None:
            if waited >= self._timeout:
                raise TimeoutError(self._who_is_late(f"none was done within {self._timeout} s"))
            return self._timeout - waited
        if waited >= _PATIENCE_S and not self._warned:
            self._warned = True
            warn_user(self._who_is_late(f"next() has waited {_PATIENCE_S:.0f} s for one"), UserWarning)
        return None if self._warned else _PATIENCE_S - waited

    def _who_is_late(self, what: str) -> str:
        epoch, ordinal = min(self._open)
        return (
            f"{_number_of(self._open)} {_are(self._open)} open (ahead={self._ahead}), and {what}; the oldest is item "
            f"{ordinal} of epoch {epoch}. Call done() or drop() for those that are finished, or raise ahead="
        )

    def _wake(self) -> None:
        self._changed.notify_all()
        for loop, future in self._futures:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_finish, future)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until no claim is open in this process. Raises: TimeoutError after ``timeout`` seconds."""
        most = None if timeout is None else check_seconds("timeout", timeout)
        with self._lock:
            if not self._changed.wait_for(lambda: len(self._open) == len(self._back), most):
                raise TimeoutError(self._who_is_late(f"not all were done within {timeout} s"))

    def _remember(self, position: Any) -> None:
        """Remember the loader's position, and forget those that no state needs any more."""
        self._next = (position.epoch, position.delivered)
        self._positions.append((self._next, position))
        chosen = [_last_before(self._positions, item) for item in self._wanted(self._next, self._finished_to).values()]
        least = {self._positions[index][0][0]: index for index in chosen if index is not None}
        self._positions = [
            entry for index, entry in enumerate(self._positions) if index >= least.get(entry[0][0], 1 << 62)
        ]

    def _wanted(self, following: Item, floor: Item | None) -> dict[int, Item]:
        """The first item of each epoch that a resume has to come to: what is before ``floor`` was done long ago."""
        wanted: dict[int, Item] = {}
        for item in (*self._open, *self._left_open, max(following, floor or following)):
            wanted[item[0]] = min(item, wanted.get(item[0], item))
        return dict(sorted(wanted.items()))

    # -- finishing -----------------------------------------------------------------------------------------------------

    def done(self, number: Number | tuple[int, ...], result: Any = None) -> bool:
        """``number`` is finished; with ``groups``, one time more. False if that does not count: it came too late
        (``max_staleness``), or the item has been given again since.

        ``number``: ``claim.number``, or (epoch, ordinal). Raises: ValueError for a claim that is not open; TypeError.
        """
        with self._lock:
            item, entry = self._named(number)
            if entry is None:
                return False
            if self._is_late(entry.version):
                self._take_back(item, entry)
                return False
            if self._keeps_results:
                entry.results.append(_kept(result))
            entry.calls += 1
            if entry.calls == self._groups:
                if self._keeps_results:
                    self._results.append((item, entry.results))
                self._counts["done"] += 1
                del self._open[item]
                self._wake()
            return True

    def _take_back(self, item: Item, entry: _Open) -> None:
        """Its result came too late."""
        if self._drops_stale:
            self._drop(item, "stale")
            return
        entry.giving, entry.calls, entry.results = 0, 0, []
        self._counts["again"] += 1
        self._back.append(item)
        self._wake()

    def drop(self, number: Number | tuple[int, ...], reason: str = "") -> bool:
        """Nobody will finish ``number``, and no resume gives it again; ``stats().reasons`` counts by ``reason``. False
        if it has been given again since, to somebody who may finish it.

        Raises: ValueError for a claim that is not open; TypeError.
        """
        if not isinstance(reason, str):
            raise TypeError(f"reason must be a text, got {reason!r}")
        with self._lock:
            item, entry = self._named(number, waits=True)
            if entry is None:
                return False
            if not entry.giving:
                self._back.remove(item)
            self._drop(item, reason)
            return True

    def _drop(self, item: Item, reason: str) -> None:
        self._reasons[reason] = self._reasons.get(reason, 0) + 1
        self._counts["dropped"] += 1
        del self._open[item]
        self._wake()

    def _named(self, number: Any, *, waits: bool = False) -> tuple[Item, _Open | None]:
        """What ``number`` names; one that ``waits`` to be given again, if so asked. None: somebody else has it by now,
        it was dropped when a result came too late, or it was given by the run before.
        """
        item, giving, version = _numbers(number)
        entry = self._open.get(item)
        if entry is not None and (giving in (None, entry.giving) if entry.giving else waits):
            return item, entry
        if giving is not None and (entry is not None or giving not in self._givings or self._is_late(version)):
            return item, None
        if entry is not None:
            why = "its result came too late, and it was not given again yet"
        elif item in self._left_open:
            why = "since the state was loaded it was not given yet"
        else:
            why = "it is done or dropped already, or was never given"
        raise ValueError(f"item {item[1]} of epoch {item[0]} is not open: {why}")

    def _is_late(self, version: int) -> bool:
        return self._max_staleness is not None and self._version - version > self._max_staleness

    def advance(self) -> int:
        """There is a new version of what works on items (new weights): claims given from now on have it."""
        with self._lock:
            self._version += 1
            return self._version

    def take(self, count: int | None = None) -> list[tuple[tuple[int, int], list[Any]]]:
        """Up to ``count`` kept results, the first ones that were done: ((epoch, ordinal), the results of its group)."""
        if not self._keeps_results and not self._results:
            raise RuntimeError("no results are kept: make the claims with keep_results=True")
        asked = None if count is None else check_count("count", count, at_least=0)
        with self._lock:
            most = len(self._results) if asked is None else min(len(self._results), asked)
            return [self._results.popleft() for _ in range(most)]

    def stats(self) -> ClaimStats:
        """What has become of the claims. Any thread."""
        with self._lock:
            since = [entry.since for entry in self._open.values()]
            return ClaimStats(
                open=len(since) + len(self._left_open),
                oldest_s=time.monotonic() - min(since) if since else 0.0,
                waited_s=self._waited_s,
                reasons=dict(self._reasons),
                **self._counts,
            )

    def close(self) -> None:
        """Forget what is open, the item that a waiting ``next`` has at hand, and what a loaded state says is done
        behind the loader's own position: the loader's state is its own again. Idempotent.
        """
        with self._lock:
            self._reset()
            self._closed = True
            self._wake()
        self._loader._forget_claims(self)

    def interrupt(self) -> None:
        """Whoever waits for a claim is told that the loop is over; what is open stays open."""
        with self._lock:
            self._loop = _nobody
            self._wake()

    def would_lose(self) -> str:
        """What :meth:`close` would forget, in words; "" if nothing."""
        with self._lock:
            loop = self._loop()
            at_hand = loop is not None and loop.at_hand is not None
            lost = range(len(self._open) + len(self._left_open) + at_hand)
            if lost:
                return f"{_number_of(lost)} {_are(lost)} open"
            following, _, resumes = self._where()
            if resumes and self._finished_to is not None and following < self._finished_to:
                return "items behind the loader's position are done"
            results = self._results
            return f"{len(results)} result{'s'[: len(results) > 1]} {_were(results)} not taken" if results else ""

    def _check_open(self) -> None:
        if self._closed:
            raise IteratorInvalidated("these claims are closed: make others with loader.claims(...)")

    def _check_at_work(self, loop: EpochOfClaims[T]) -> None:
        self._check_open()
        if loop is not self._loop():
            raise IteratorInvalidated(
                "this loop over claims has been ended by a newer one, load_state_dict() or shutdown(): iterate the "
                "claims again"
            )

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def at_work(self) -> bool:
        """True if a state of the loader alone would miss what is open."""
        return not self._closed and self._next is not None

    def state_dict(self) -> dict[str, Any]:
        """The state of the loader and of the claims that are open, at any time. It loads into a loader by
        ``load_state_dict``, whose :meth:`claims` then give the open ones again.
        """
        loader = self._loader
        with self._lock:
            if self._next is None:
                return loader._state_at(loader._position_now())
            following, rest, resumes = self._where()
            here: list[tuple[Item, Any]] = []
            if (left := self._left()) is not None:
                loader._epochs.note_saved(left)
            elif not resumes or self._stands_in_a_rest() or (rest is not None and rest.state is None):
                here.append((following, loader._position_now()))
            floor = self._finished_to if resumes else None
            found = self._states(following, floor, [*self._positions, *here])
            (first, state), *later = found
            highest = max(self._open, default=following)
            saved = SavedClaims(
                first=first,
                following=max(following, (highest[0], highest[1] + (highest in self._open)), floor or first),
                open=sorted({*self._open, *self._left_open}),
                later=later,
                version=self._version,
                counts=dict(self._counts),
                reasons=dict(self._reasons),
                results=list(self._results),
                ranks=loader._ranks_of_claims(),
            )
            payload = saved.encoded()
        loader._tell_opaque(payload)
        return saved.beside(state, payload)

    def _left(self) -> Any:
        """The loader's epoch at work, or the one that was left in its midst."""
        form = self._loader._epochs.form
        return form.work() if isinstance(form, Live) else form if isinstance(form, Parked) else None

    def _where(self) -> tuple[Item, _Rest | None, bool]:
        """As :meth:`_coming`, or what the loop at work gives next."""
        if self._next is None or self._left() is None:
            return self._coming()
        return self._next, None, True

    def _states(
        self, following: Item, floor: Item | None, positions: list[tuple[Item, Any]]
    ) -> list[tuple[Item, dict[str, Any]]]:
        """For each epoch that a resume has to come to: the loader's state before its first open item."""
        found = []
        for epoch, item in self._wanted(following, floor).items():
            index = _last_before(positions, item)
            if index is not None:
                first, position = positions[index]
                found.append((first, self._loader._state_at(position)))
            elif (rest := self._rests.get(epoch)) is not None and rest.state is not None:
                found.append((rest.first, rest.state))
        return found

    def _load(self, saved: SavedClaims | None) -> None:
        """Take up what a state says of claims, or nothing; the loader has taken up its own part."""
        position = None if saved is None else self._loader._position_now()
        with self._lock:
            self._reset()
            if saved is not None:
                self.as_loaded, self._allow_pickle = saved, saved.allow_pickle
                self._rests = {first[0]: _Rest(first, state) for first, state in saved.later}
                epoch, ordinal = saved.first
                self._rests[epoch] = _Rest(saved.first, saved.own if ordinal else None)
                self._finished_to, self._left_open = saved.following, set(saved.open)
                self._version = saved.version
                self._counts |= saved.counts
                self._reasons = dict(saved.reasons)
                self._results = deque(saved.results)
                self._remember(position)
            self._wake()


class EpochOfClaims(Iterator[Claim[T]], Generic[T]):
    """One epoch of claims: what ``iter(claims)`` returns. ``stream``: the loader's iterator, until it has ended.
    ``at_hand``: the item that comes next, once it is made. ``finished_to``: of a loaded state, items before it were
    finished, but for those left open.
    """

    def __init__(self, claims: Claims[T], stream: Any, finished_to: Item | None) -> None:
        self._claims = claims
        self.stream = stream
        self.epoch = 0 if stream is None else int(stream.epoch)
        self.finished_to = finished_to
        self.lock = threading.Lock()  # of the thread that pulls
        self.at_hand: tuple[Item, T] | None = None
        self.since_remembered = 0
        self.over = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Claim[T]:
        """The next claim. Raises: TimeoutError if as many as may be are still open after ``timeout``, and the next call
        goes on there; what the loader raises, and this one then goes on, or is over, as the loader's iterator.
        """
        return self._claims._given(self)


class _Asynchronous(AsyncIterator[Claim[T]], Generic[T]):
    """One epoch of claims for ``async for``. A call that is cancelled takes nothing, and leaves nobody waiting."""

    def __init__(self, claims: Claims[T]) -> None:
        self._claims = claims
        self._beginning = threading.Lock()
        self._loop: EpochOfClaims[T] | None = None

    async def __anext__(self) -> Claim[T]:
        return await self._claims._given_to_task(self)

    def loop(self) -> EpochOfClaims[T]:
        """Begun by the first call."""
        with self._beginning:
            if self._loop is None:
                self._loop = iter(self._claims)
            return self._loop


def _nobody() -> None:
    return None


def _kept(result: Any) -> Any:
    """A copy. Raises: TypeError for what no state could hold."""
    try:
        encode(result)
    except Exception as error:
        raise TypeError(
            f"with keep_results=True a result is plain data, which a state can hold: {result!r:.200}"
        ) from error
    return copy_item(result)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _last_before(positions: list[tuple[Item, Any]], item: Item) -> int | None:
    """Which of the positions is the last one before ``item``, in its epoch."""
    found = [index for index, (first, _) in enumerate(positions) if first[0] == item[0] and first <= item]
    return found[-1] if found else None


def _numbers(number: Any) -> tuple[Item, int | None, int]:
    """The item, and, if ``number`` tells them, its giving and version. Raises: TypeError."""
    try:
        parts = [operator.index(part) for part in (number.number if isinstance(number, Claim) else number)]
    except TypeError:
        parts = []
    if len(parts) == 2:
        return (parts[0], parts[1]), None, 0
    if len(parts) == len(Number._fields):
        return (parts[0], parts[1]), parts[2], parts[3]
    raise TypeError(f"a claim is named by its number, claim.number, or by (epoch, ordinal); got {number!r:.200}")


def _number_of(claims: Any) -> str:
    return f"{len(claims)} claim{'s'[: len(claims) != 1]}"


def _are(claims: Any) -> str:
    return "is" if len(claims) == 1 else "are"


def _were(claims: Any) -> str:
    return "was" if len(claims) == 1 else "were"
