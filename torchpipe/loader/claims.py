"""Claims: a loader's items for consumers that run ahead and finish out of order, with a state of what is finished.

Runs in the user's process. A loader's own state counts what it has handed out. Where items are taken far ahead and
finish in any order (rollouts, generation, scoring), a resume from it would skip what was still open. A claim is open
until it is done or dropped, whoever finishes first.

The state is the loader's, as it was before an item that is no later than the oldest open claim, and the numbers of the
open ones. With 10 items given, of which 3 and 7 are open, and the loader's state before item 2: ``from`` (0, 2),
``next`` (0, 10), ``open`` [(0, 3), (0, 7)]. A resume goes to item 2, passes over 2, gives 3, passes over 4 to 6, gives
7, passes over 8 and 9, and goes on. Each epoch that has open claims has a loader's state of its own (``later``), since
what is drawn between two epochs may fix the order of the second.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, TypeAlias, TypeVar

from torchpipe.errors import IteratorInvalidated, StateError, StateMismatchError
from torchpipe.node.announce import warn_user
from torchpipe.node.validate import check_count
from torchpipe.state.codec import as_text, decode, encode, from_text
from torchpipe.state.copying import copy_item

if TYPE_CHECKING:
    from typing import Protocol

    class _Position(Protocol):
        @property
        def epoch(self) -> int: ...

        @property
        def delivered(self) -> int: ...

    class _Loader(Protocol):
        @property
        def epoch(self) -> int: ...

        def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...

        def _coming_number(self) -> tuple[int, int]: ...

        def _position_now(self) -> _Position: ...

        def _state_at(self, position: Any) -> dict[str, Any]: ...

        def _tell_opaque(self, payload: bytes) -> None: ...

        def _ranks_of_claims(self) -> list[int]: ...

        def _iterate_claims(self, claims: Any) -> Any: ...

        def _load_for_claims(self, state: dict[str, Any]) -> None: ...


__all__ = ["Claim", "ClaimStats", "Claimable", "Claims", "EpochOfClaims", "Number"]

T = TypeVar("T")

KEY = "claims"  # in a loader's state
_Item: TypeAlias = tuple[int, int]  # (epoch, ordinal)
_PATIENCE_S = 60.0
_REMEMBERED = 8  # positions that are remembered while as many items are taken as may be open


class Number(NamedTuple):
    """Which claim: ``ordinal`` counts the items of ``epoch`` from 0 on, the same for every number of workers.
    ``giving`` tells an item that is given again from the time before.
    """

    epoch: int
    ordinal: int
    giving: int


@dataclass(frozen=True, eq=False)
class Claim(Generic[T]):
    """An item that somebody works on. Open until :meth:`done` or :meth:`drop`, also if nobody holds it any more.

    ``number`` and ``item`` can be sent to another process (the claim itself as well); whoever has the
    :class:`Claims` says there ``claims.done(number, result)``. ``version``: how often ``advance()`` had been called.
    """

    item: T
    number: Number
    version: int = 0
    _of: Claims[T] | None = field(default=None, repr=False)

    @property
    def epoch(self) -> int:
        return self.number.epoch

    @property
    def ordinal(self) -> int:
        return self.number.ordinal

    def done(self, result: Any = None) -> bool:
        """As :meth:`Claims.done`. Raises: RuntimeError in another process than that of the loader."""
        return self._owner("done").done(self.number, result)

    def drop(self, reason: str = "") -> None:
        """As :meth:`Claims.drop`. Raises: RuntimeError in another process than that of the loader."""
        self._owner("drop").drop(self.number, reason)

    def _owner(self, method: str) -> Claims[T]:
        if self._of is None:
            raise RuntimeError(
                f"this is a copy of a claim: send its number back, and say claims.{method}(number) in the process that "
                "has the loader"
            )
        return self._of

    def __reduce__(self) -> tuple[Any, ...]:
        return Claim, (self.item, self.number, self.version)


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
    """A claim that is open; a copy of the ``item`` is kept only where it may have to be given again."""

    giving: int
    version: int
    since: float
    results: list[Any] = field(default_factory=list)
    item: Any = None


class Claims(Generic[T]):
    """The items of a loader as claims. ``for claim in claims`` is one epoch, as with the loader.

    One thread iterates (or one asyncio task, by ``async for``); :meth:`done`, :meth:`drop` and :meth:`state_dict` may
    be called from any thread. What is open when the loop ends stays open, and counts in the next epoch.

    Made by ``loader.claims(...)``, whose arguments these are:

    Args:
        ahead: the most claims that are open: ``next`` waits until one is done or dropped.
        groups: so many times a claim has to be ``done`` until it is (rollouts of one prompt).
        timeout: seconds that ``next`` waits; None: without end (with a warning after a minute).
        max_staleness: a result that arrives after more calls of :meth:`advance` than that does not count.
        stale: what becomes of such a claim: ``"again"``, it is given again, before new ones; ``"drop"``. If it comes
            back when the loop has ended, the next ``for`` gives what has come back, and no more.
        keep_results: results are kept, with the state too, until :meth:`take` takes them. They must be plain data.

    State: :meth:`state_dict`, which is also what the loader's gives as long as claims are at work. A resume gives the
    open claims again, in order, and goes on behind the last one given. It makes the items between the oldest open one
    and the last one again, and those of up to ``ahead / 8`` more.

    Raises: TypeError or ValueError for arguments out of range, and for a loader whose items come in any order.
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
        self._loader = loader
        self._ahead = check_count("ahead", ahead, at_least=1)
        self._groups = check_count("groups", groups, at_least=1)
        self._max_staleness = None if max_staleness is None else check_count("max_staleness", max_staleness, at_least=0)
        if stale not in ("again", "drop"):
            raise ValueError(f'stale must be "again" or "drop", got {stale!r}')
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout must be a number of seconds, or None to wait without end, got {timeout!r}")
        self._timeout = timeout
        self._drops_stale = stale == "drop"
        self._keeps_results = bool(keep_results)
        self._changed = threading.Condition(threading.RLock())
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._pulling = threading.Lock()
        self._closed = self._warned = False
        self._givings = 0
        self._waited_s = 0.0
        self._reset()

    def _reset(self) -> None:
        """Nothing was given yet."""
        self._epoch_at_work: EpochOfClaims[T] | None = None
        self._next: _Item | None = None  # the item that comes next; None: not begun
        self._at_hand: tuple[_Item, T] | None = None  # that item, once it is made
        self._open: dict[_Item, _Open] = {}
        self._back: deque[_Item] = deque()  # of these, those to be given again in this process
        self._late: set[int] = set()  # the givings that were taken back
        self._results: deque[tuple[_Item, list[Any]]] = deque()
        self._positions: list[tuple[_Item, Any]] = []  # of the loader, each before that item
        self._since_remembered = 0
        self._left_open: set[_Item] = set()  # of a loaded state: to be given again
        self._finished_to: _Item | None = None  # what is before it, and not left open, was done before that state
        self._later: deque[tuple[_Item, dict[str, Any]]] = deque()  # of that state: the loader's, of later epochs
        self._version = 0
        self._counts = {"done": 0, "dropped": 0, "again": 0, "passed": 0}
        self._reasons: dict[str, int] = {}

    # -- taking --------------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that the next ``for`` gives claims of, or the one at work: ``while claims.epoch < epochs``."""
        with self._changed:
            back = min(self._back, default=None)
        return self._loader.epoch if back is None else back[0]

    def __iter__(self) -> EpochOfClaims[T]:
        """Begin the next epoch, or go on with the rest of a loaded one; or what has come back, if there is any.

        Raises: RuntimeError where open claims would be lost; IteratorInvalidated after :meth:`close`.
        """
        with self._pulling:
            self._check_open()
            epoch = EpochOfClaims(self, None if self._back else self._begun())
            self._epoch_at_work = epoch
            return epoch

    def __aiter__(self) -> AsyncIterator[Claim[T]]:
        return _Asynchronous(self)

    def _begun(self) -> Any:
        """The loader's next epoch."""
        if self._later and self._is_later(self._loader._coming_number()[0]):
            self._loader._load_for_claims(self._later.popleft()[1])
        first = self._loader._coming_number()
        with self._changed:
            twice = [item for item in self._open if item >= first]
            lost = [item for item in self._left_open if item < first]
        if twice:
            raise RuntimeError(
                f"{len(twice)} claims of epoch {max(twice)[0]} are open, and epoch {first[0]} would begin again from "
                f"item {first[1]}: let them be done, or call close()"
            )
        if lost:
            raise RuntimeError(
                f"{len(lost)} claims of epoch {min(lost)[0]} are open in the loaded state and were not given yet, and "
                f"epoch {first[0]} would begin without them: load the state again and iterate its epoch to the end, or "
                "call close()"
            )
        stream = self._loader._iterate_claims(self)
        self._remember()
        return stream

    def _is_later(self, epoch: int) -> bool:
        """True if the loaded state of a later epoch is that of ``epoch``, or nothing of ``epoch`` is to be given."""
        return self._later[0][0][0] == epoch or not any(item[0] == epoch for item in self._left_open)

    def _given(self, epoch: EpochOfClaims[T]) -> Claim[T]:
        with self._pulling:
            if not self._has_next(epoch):
                raise StopIteration
            self._wait_for_room(epoch)
            return self._take(epoch)

    def _has_next(self, epoch: EpochOfClaims[T]) -> bool:
        """True once there is a claim to give. The item is made before there is room for it: an epoch ends at once."""
        while True:
            self._check_at_work(epoch)
            if self._back or self._at_hand is not None:
                return True
            if epoch.stream is None:
                return False
            if self._since_remembered * _REMEMBERED >= self._ahead:
                self._remember()
            if not self._pull(epoch):
                epoch.stream = None
                self._remember()

    def _pull(self, epoch: EpochOfClaims[T]) -> bool:
        """Have the next item at hand, unless it is one that is finished. False: there are no more."""
        stream, item = epoch.stream, self._next
        assert item is not None
        try:
            value = next(stream)
            item = (item[0], stream.delivered - 1)
            if self._finished_to is None or item >= self._finished_to or item in self._left_open:
                self._at_hand = item, value
            else:
                self._counts["passed"] += 1
            self._next = item if self._at_hand else (item[0], item[1] + 1)
        except StopIteration:
            return False
        except BaseException as error:
            with self._changed:
                if not isinstance(error, Exception) and stream.delivered > item[1] and self._at_hand is None:
                    self._left_open.add(item)  # an interrupt has taken it on its way: a resume gives it
                self._next = (item[0], stream.delivered - (self._at_hand is not None))
            raise
        self._since_remembered += 1
        return True

    def _take(self, epoch: EpochOfClaims[T]) -> Claim[T]:
        with self._changed:
            self._check_at_work(epoch)
            self._givings += 1
            now, giving = time.monotonic(), self._givings
            if self._back:
                item = self._back.popleft()
                entry = self._open[item]
                entry.giving, entry.version, entry.since = giving, self._version, now
                return Claim(copy_item(entry.item), Number(*item, giving), self._version, self)
            assert self._at_hand is not None
            item, value = self._at_hand
            may_come_back = self._max_staleness is not None and not self._drops_stale
            # A state that is asked for in the midst of this, by a signal handler, finds it open in any case
            self._open[item] = _Open(giving, self._version, now, item=copy_item(value) if may_come_back else None)
            self._next = (item[0], item[1] + 1)
            self._left_open.discard(item)
            self._at_hand = None
            return Claim(value, Number(*item, giving), self._version, self)

    def _has_room(self, epoch: EpochOfClaims[T] | None) -> bool:
        self._check_at_work(epoch)
        return len(self._open) - len(self._back) < self._ahead

    def _wait_for_room(self, epoch: EpochOfClaims[T]) -> None:
        began = time.monotonic()
        with self._changed:
            while not self._has_room(epoch):
                self._changed.wait(self._patience(began))
            self._waited_s += time.monotonic() - began

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
            f"{len(self._open)} claims are open (ahead={self._ahead}), and {what}; the oldest is item {ordinal} of "
            f"epoch {epoch}. Call done() or drop() for those that are finished, or raise ahead="
        )

    def _wake(self) -> None:
        self._changed.notify_all()
        waiting, self._waiting = self._waiting, []
        for loop, future in waiting:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_finish, future)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until no claim is open in this process. Raises: TimeoutError after ``timeout`` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._open) == len(self._back), timeout):
                raise TimeoutError(self._who_is_late(f"not all were done within {timeout} s"))

    def _remember(self) -> None:
        """Remember the loader's position, and forget those that no state needs any more."""
        position = self._loader._position_now()
        with self._changed:
            self._next = (position.epoch, position.delivered)
            self._positions.append((self._next, position))
            self._since_remembered = 0
            chosen = [self._index_of(item) for item in self._wanted().values()]
            least = {self._positions[index][0][0]: index for index in chosen if index is not None}
            self._positions = [
                entry for index, entry in enumerate(self._positions) if index >= least.get(entry[0][0], 1 << 62)
            ]

    def _wanted(self) -> dict[int, _Item]:
        """The first item of each epoch that a resume has to come to."""
        assert self._next is not None
        wanted: dict[int, _Item] = {}
        for item in (*self._open, *self._left_open, max(self._next, self._finished_to or self._next)):
            wanted[item[0]] = min(item, wanted.get(item[0], item))
        return dict(sorted(wanted.items()))

    def _index_of(self, item: _Item) -> int | None:
        """Which of the remembered positions is the last one before ``item``, in its epoch."""
        found = [index for index, (first, _) in enumerate(self._positions) if first[0] == item[0] and first <= item]
        return found[-1] if found else None

    # -- finishing -----------------------------------------------------------------------------------------------------

    def done(self, number: Number | tuple[int, ...], result: Any = None) -> bool:
        """``number`` is finished; with ``groups``, one time more. False if that does not count: it came too late
        (``max_staleness``), or the item has been given again since. Raises: ValueError for a claim that is not open.
        """
        with self._changed:
            item, entry = self._entry(number)
            if entry is None:
                return False
            if self._max_staleness is not None and self._version - entry.version > self._max_staleness:
                self._late.add(entry.giving)
                if self._drops_stale:
                    self._drop(item, "stale")
                else:
                    entry.results.clear()
                    self._counts["again"] += 1
                    self._back.append(item)
                    self._wake()
                return False
            entry.results.append(result)
            if len(entry.results) == self._groups:
                if self._keeps_results:
                    self._results.append((item, entry.results))
                self._counts["done"] += 1
                del self._open[item]
                self._wake()
            return True

    def drop(self, number: Number | tuple[int, ...], reason: str = "") -> None:
        """Nobody will finish ``number``, and no resume gives it again; ``stats().reasons`` counts by ``reason``.

        Raises: ValueError for a claim that is not open.
        """
        if not isinstance(reason, str):
            raise TypeError(f"reason must be a text, got {reason!r}")
        with self._changed:
            item, entry = self._entry(number)
            if entry is not None:
                self._drop(item, reason)

    def _drop(self, item: _Item, reason: str) -> None:
        self._reasons[reason] = self._reasons.get(reason, 0) + 1
        self._counts["dropped"] += 1
        del self._open[item]
        self._wake()

    def _entry(self, number: Number | tuple[int, ...]) -> tuple[_Item, _Open | None]:
        """None for one that somebody else has by now."""
        epoch, ordinal, *giving = map(int, number)
        entry = self._open.get((epoch, ordinal))
        if giving and (giving[0] in self._late or (entry is not None and entry.giving != giving[0])):
            return (epoch, ordinal), None
        if entry is None or (epoch, ordinal) in self._back:
            raise ValueError(
                f"item {ordinal} of epoch {epoch} is not open: it is done or dropped already, or was not given since "
                "the state was loaded"
            )
        return (epoch, ordinal), entry

    def advance(self) -> int:
        """There is a new version of what works on items (new weights): claims given from now on have it."""
        with self._changed:
            self._version += 1
            return self._version

    def take(self, count: int | None = None) -> list[tuple[tuple[int, int], list[Any]]]:
        """Up to ``count`` kept results, the first ones that were done: ((epoch, ordinal), the results of its group)."""
        if not self._keeps_results:
            raise RuntimeError("no results are kept: make the claims with keep_results=True")
        asked = None if count is None else check_count("count", count, at_least=0)
        with self._changed:
            most = len(self._results) if asked is None else min(len(self._results), asked)
            return [self._results.popleft() for _ in range(most)]

    def stats(self) -> ClaimStats:
        """What has become of the claims. Any thread."""
        with self._changed:
            since = [entry.since for entry in self._open.values()]
            return ClaimStats(
                open=len(since) + len(self._left_open),
                oldest_s=time.monotonic() - min(since) if since else 0.0,
                waited_s=self._waited_s,
                reasons=dict(self._reasons),
                **self._counts,
            )

    def close(self) -> None:
        """Forget what is open, and the item that a waiting ``next`` has at hand: the loader's state is its own again.
        Idempotent.
        """
        with self._changed:
            self._reset()
            self._closed = True
            self._wake()

    def interrupt(self) -> None:
        """Whoever waits for a claim is told that the epoch is over; what is open stays open."""
        with self._changed:
            self._epoch_at_work = None
            self._wake()

    def would_lose(self) -> str:
        """What :meth:`close` would forget, in words; "" if nothing."""
        with self._changed:
            count = len(self._open) + len(self._left_open) + (self._at_hand is not None)
            if count:
                return f"{count} claims are open"
            return f"{len(self._results)} results were not taken" if self._results else ""

    def _check_open(self) -> None:
        if self._closed:
            raise IteratorInvalidated("these claims are closed: make others with loader.claims(...)")

    def _check_at_work(self, epoch: EpochOfClaims[T] | None) -> None:
        self._check_open()
        if epoch is not self._epoch_at_work:
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
        with self._changed:
            if self._next is None:
                return self._loader._state_at(self._loader._position_now())
            (first, state), *later = self._states()
            highest = max((*self._open, self._next))
            following = max(self._next, (highest[0], highest[1] + (highest in self._open)), self._finished_to or first)
            saved = {
                "from": list(first),
                "next": list(following),
                "open": [list(item) for item in sorted({*self._open, *self._left_open})],
                "later": [[list(item), other] for item, other in later],
                "version": self._version,
                "givings": self._givings,
                "counts": dict(self._counts),
                "reasons": dict(self._reasons),
                "results": [[list(item), results] for item, results in self._results],
                "ranks": self._loader._ranks_of_claims(),
            }
            payload = encode(saved)
        self._loader._tell_opaque(payload)
        return state | {KEY: as_text(payload)}

    def _states(self) -> list[tuple[_Item, dict[str, Any]]]:
        """For each epoch that a resume has to come to: the loader's state before its first open item."""
        loaded = {item[0]: (item, state) for item, state in self._later}
        found = []
        for epoch, item in self._wanted().items():
            index = self._index_of(item)
            if index is not None:
                first, position = self._positions[index]
                found.append((first, self._loader._state_at(position)))
            elif epoch in loaded:
                found.append(loaded[epoch])
        return found

    def _load(self, saved: Mapping[str, Any] | None) -> None:
        """Take up what a state says of claims, or nothing; the loader has taken up its own part."""
        with self._changed:
            self._reset()
            if saved is not None:
                self._left_open = {(epoch, ordinal) for epoch, ordinal in saved["open"]}
                self._finished_to = (saved["next"][0], saved["next"][1])
                self._later = deque(((item[0], item[1]), state) for item, state in saved["later"])
                self._version, self._givings = saved["version"], max(self._givings, saved["givings"])
                self._counts |= saved["counts"]
                self._reasons = dict(saved["reasons"])
                self._results = deque(((item[0], item[1]), list(results)) for item, results in saved["results"])
                self._remember()
            self._wake()


class EpochOfClaims(Iterator[Claim[T]], Generic[T]):
    """One epoch of claims: what ``iter(claims)`` returns. ``stream``: the loader's iterator, until it has ended."""

    def __init__(self, claims: Claims[T], stream: Any) -> None:
        self._claims = claims
        self.stream = stream

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Claim[T]:
        """The next claim. Raises: TimeoutError if as many as may be are still open after ``timeout``; what the loader
        raises. In both cases nothing is lost.
        """
        return self._claims._given(self)


class _Asynchronous(AsyncIterator[Claim[T]], Generic[T]):
    """One epoch of claims for ``async for``. A call that is cancelled takes nothing, and leaves nobody waiting."""

    def __init__(self, claims: Claims[T]) -> None:
        self._claims = claims
        self._epoch: EpochOfClaims[T] | None = None

    async def __anext__(self) -> Claim[T]:
        claims = self._claims
        has_next = await asyncio.to_thread(self._look)  # items may take long to make; one that is made stays at hand
        assert self._epoch is not None
        if not has_next:
            raise StopAsyncIteration
        began = time.monotonic()
        while True:
            with claims._changed:
                if claims._has_room(self._epoch):
                    claims._waited_s += time.monotonic() - began
                    return claims._take(self._epoch)
                loop = asyncio.get_running_loop()
                future: asyncio.Future[None] = loop.create_future()
                claims._waiting.append((loop, future))
            await asyncio.wait([future], timeout=claims._patience(began))

    def _look(self) -> bool:
        if self._epoch is None:
            self._epoch = iter(self._claims)
        with self._claims._pulling:
            return self._claims._has_next(self._epoch)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Claimable:
    """Mixed into the loaders: they have at most one :class:`Claims` at work, whose state is theirs."""

    _claims: Claims[Any] | None = None
    _claims_to_load: tuple[dict[str, Any], str] | None = None  # of a loaded state, if nobody has made claims yet
    _for_claims = False  # True while claims begin an epoch, or load a state

    def claims(
        self,
        ahead: int = 64,
        *,
        groups: int = 1,
        timeout: float | None = None,
        max_staleness: int | None = None,
        stale: Literal["again", "drop"] = "again",
        keep_results: bool = False,
    ) -> Claims[Any]:
        """The items as claims, for consumers that finish them out of order: see :class:`Claims` for the arguments.

        Raises: RuntimeError while claims that were made before are open.
        """
        made: Any = Claims(
            self,  # type: ignore[arg-type]
            ahead,
            groups=groups,
            timeout=timeout,
            max_staleness=max_staleness,
            stale=stale,
            keep_results=keep_results,
        )
        loaded, self._claims_to_load = self._claims_to_load, None
        self._check_no_claims("other claims")
        self._claims = made
        if loaded is not None:
            made._load(loaded[0])
        return made  # type: ignore[no-any-return]

    def _iterate_claims(self, claims: Claims[Any]) -> Any:
        if self._claims is not claims:
            raise IteratorInvalidated("these claims are those of the loader no more: use the ones made last")
        self._for_claims = True
        try:
            return iter(self)  # type: ignore[call-overload]
        finally:
            self._for_claims = False

    def _load_for_claims(self, state: dict[str, Any]) -> None:
        self._for_claims = True
        try:
            self.load_state_dict(state)  # type: ignore[attr-defined]
        finally:
            self._for_claims = False

    def _check_no_claims(self, what: str) -> None:
        """Raises: RuntimeError where what follows would lose open claims."""
        if self._for_claims:
            return
        if self._claims_to_load is not None:
            raise RuntimeError(
                f"the loaded state has open claims, which {what} would lose: go on with loader.claims(...), or load "
                "another state"
            )
        if self._claims is not None:
            lost = self._claims.would_lose()
            if lost:
                raise RuntimeError(f"{lost}, which {what} would lose: go on with the claims, or call their close()")
            self._claims.close()
            self._claims = None

    def _interrupt_claims(self) -> None:
        if self._claims is not None:
            self._claims.interrupt()

    def _state_of_claims(self, exact: bool) -> dict[str, Any] | None:
        """The state, if claims are at work or loaded. Raises: StateError for one that is to be ``exact``."""
        if self._claims_to_load is not None:
            own: Any = self
            state: dict[str, Any] = own._state_at(own._position_now())
            return state | {KEY: self._claims_to_load[1]}
        if self._claims is None or not self._claims.at_work:
            return None
        if exact:
            raise StateError(
                "exact=True is for a loop without claims: open items are made again when the state is loaded. Save "
                "without it, or call claims.close() and iterate the loader itself"
            )
        return self._claims.state_dict()

    def _split_state(self, state: Any, allow_pickle: bool) -> tuple[Any, tuple[dict[str, Any], str] | None]:
        """The loader's own part of a state, and what it says of claims. Raises: StateError for damage."""
        if not isinstance(state, Mapping) or KEY not in state:
            return state, None
        rest = {name: value for name, value in state.items() if name != KEY}
        text = state[KEY]
        return rest, (_read(text, self._ranks_of_claims(), allow_pickle), text)  # type: ignore[attr-defined]

    def _load_claims(self, saved: tuple[dict[str, Any], str] | None) -> None:
        """The loader has taken up a state, which says this of claims."""
        if self._for_claims:
            return
        if self._claims is None:
            self._claims_to_load = saved
        else:
            self._claims._load(None if saved is None else saved[0])


def _read(value: Any, ranks: list[int], allow_pickle: bool) -> dict[str, Any]:
    saved = decode(from_text(value), allow_pickle=allow_pickle) if isinstance(value, str) else None
    names = {"from", "next", "open", "later", "version", "givings", "counts", "reasons", "results", "ranks"}
    if not isinstance(saved, dict) or saved.keys() != names:
        raise StateError(f"the claims of the state are damaged: {value!r:.60}. Use an older checkpoint")
    pairs = [saved[name] for name in ("later", "results")]
    sound = (
        all(type(saved[name]) is list for name in ("open", "later", "results", "ranks"))
        and all(type(entry) is list and len(entry) == 2 for part in pairs for entry in part)
        and all(
            type(item) is list and len(item) == 2 and all(type(part) is int and part >= 0 for part in item)
            for item in (saved["from"], saved["next"], *saved["open"], *(item for part in pairs for item, _ in part))
        )
        and saved["from"] <= saved["next"]
        and all(saved["from"] <= item < saved["next"] for item in saved["open"])
        and all(type(state) is dict for _, state in saved["later"])
        and all(type(results) is list for _, results in saved["results"])
        and all(type(saved[name]) is int and saved[name] >= 0 for name in ("version", "givings"))
        and all(type(saved[name]) is dict for name in ("counts", "reasons"))
        and saved["counts"].keys() <= {"done", "dropped", "again", "passed"}
        and all(type(count) is int for name in ("counts", "reasons") for count in saved[name].values())
        and len(saved["ranks"]) == 3
    )
    if not sound:
        raise StateError(f"the claims of the state are damaged: {saved!r:.200}. Use an older checkpoint")
    if saved["ranks"] != ranks:
        rank, world, size = saved["ranks"]
        raise StateMismatchError(
            f"the claims are those of rank {rank} of {world}, with batches of {size}; this loader is rank {ranks[0]} "
            f"of {ranks[1]}, with batches of {ranks[2]}: load on each rank the state that it saved, in a run of as many"
        )
    return saved
