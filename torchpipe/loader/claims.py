"""Claims: a loader's items for consumers that run ahead and finish out of order, with a state of what is finished.

Runs in the user's process. A loader's own state counts what it has handed out. Where items are taken far ahead and
finish in any order (rollouts, generation, scoring), a resume from it would skip what was still open. A claim is open
until it is done or dropped, whoever finishes first.

The state is the loader's, taken before an item that is not younger than the oldest open claim, and the numbers of the
open ones. With 10 items given, of which 3 and 7 are open, and a state taken before item 2: ``from`` (0, 2), ``next``
(0, 10), ``open`` [(0, 3), (0, 7)]. A resume goes to item 2, passes over 2, gives 3, passes over 4 to 6, gives 7, passes
over 8 and 9, and goes on.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, TypeVar

from torchpipe.errors import IteratorInvalidated, StateError, StateMismatchError
from torchpipe.node.announce import warn_user
from torchpipe.node.validate import check_count
from torchpipe.state.codec import as_text, decode, encode, from_text

if TYPE_CHECKING:
    from typing import Protocol

    class _Position(Protocol):
        @property
        def epoch(self) -> int: ...

        @property
        def delivered(self) -> int: ...

    class _Loader(Protocol):
        def __iter__(self) -> Iterator[Any]: ...

        def _position_now(self) -> _Position: ...

        def _state_at(self, position: Any) -> dict[str, Any]: ...

        def _ranks_of_claims(self) -> list[int]: ...

        def _iterate_claims(self, claims: Any) -> Iterator[Any]: ...


__all__ = ["Claim", "ClaimStats", "Claimable", "Claims", "Number"]

T = TypeVar("T")

KEY = "claims"  # in a loader's state
_PATIENCE_S = 60.0
_REMEMBERED = 8  # positions that are remembered while as many items are taken as may be open


class Number(NamedTuple):
    """Which item: ``ordinal`` counts the items of ``epoch`` from 0 on, the same for every number of workers."""

    epoch: int
    ordinal: int


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
    """A claim that is open; ``item`` is kept only where it may have to be given again."""

    version: int
    since: float
    results: list[Any] = field(default_factory=list)
    item: Any = None


class Claims(Iterator[Claim[T]], Generic[T]):
    """The items of a loader as claims. ``for claim in claims`` is one epoch, as with the loader.

    One thread iterates (or one asyncio task, by ``async for``); :meth:`done`, :meth:`drop` and :meth:`state_dict` may
    be called from any thread. What is open when the loop ends stays open, and counts in the next epoch.

    Made by ``loader.claims(...)``, whose arguments these are:

    Args:
        ahead: the most claims that are open: ``next`` waits until one is done or dropped.
        groups: so many times a claim has to be ``done`` until it is (rollouts of one prompt).
        timeout: seconds that ``next`` waits; None: without end.
        max_staleness: a result that arrives after more calls of :meth:`advance` than that does not count.
        stale: what becomes of such a claim: ``"again"``, it is given again, before new ones; ``"drop"``.
        keep_results: results are kept, with the state too, until :meth:`take` takes them. They must be plain data.

    State: :meth:`state_dict`, which is also what the loader's gives as long as claims are at work. A resume gives the
    open claims again, in order, and goes on behind the last one given. It makes the items between the oldest open one
    and the last one again, and those of up to ``ahead / 8`` more.

    Raises: TypeError or ValueError for arguments out of range.
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
        self._pulling = threading.Lock()
        self._stream: Iterator[Any] | None = None
        self._open: dict[Number, _Open] = {}
        self._again: deque[Number] = deque()
        self._results: deque[tuple[Number, list[Any]]] = deque()
        self._remembered: deque[tuple[Number, Any]] = deque()  # loaders' positions, each before that item
        self._since_remembered = 0
        self._next: Number | None = None  # the item that comes next; None: not begun
        self._at_hand: tuple[T] | None = None  # that item, once it is made
        self._left_open: set[Number] = set()  # of a loaded state: to be given again
        self._finished_to: Number | None = None  # what is before it, and not left open, was done before the state
        self._version = 0
        self._counts = {"done": 0, "dropped": 0, "again": 0, "passed": 0}
        self._reasons: dict[str, int] = {}
        self._waited_s = 0.0
        self._warned = False
        self._closed = False

    # -- taking --------------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch of the oldest open claim; if none is open, of the next item."""
        with self._changed:
            oldest = min((*self._open, *self._left_open), default=None)
        return self._loader._position_now().epoch if oldest is None else oldest.epoch

    def __iter__(self) -> Self:
        """Begin the next epoch, or go on with the rest of a loaded one."""
        with self._pulling:
            self._check_open()
            stream = self._loader._iterate_claims(self)
            position = self._loader._position_now()
            with self._changed:
                self._stream, self._at_hand = stream, None
                self._next = Number(position.epoch, position.delivered)
                self._check_none_lost(self._next)
                self._remember(position)
        return self

    def __next__(self) -> Claim[T]:
        """The next claim. Raises: TimeoutError if as many as may be are still open after ``timeout``; what the loader
        raises. In both cases nothing is lost.
        """
        with self._pulling:
            self._check_open()
            if not self._again:
                self._look_ahead()  # before the wait: an epoch ends without one
            self._wait_for_room()
            return self._given_again() or self._taken()

    def _check_none_lost(self, first: Number) -> None:
        """Raises: RuntimeError if the epoch that begins is beyond claims that are to be given again."""
        lost = [number for number in self._left_open if number < first]
        if lost:
            raise RuntimeError(
                f"{len(lost)} claims of epoch {min(lost).epoch} are open, and epoch {first.epoch} would begin without "
                "them: iterate the rest of that epoch first (leave set_epoch() out), or call close()"
            )

    def __aiter__(self) -> AsyncIterator[Claim[T]]:
        return self._asynchronous()

    async def _asynchronous(self) -> AsyncIterator[Claim[T]]:
        await asyncio.to_thread(iter, self)
        ended: Any = object()
        while (claim := await asyncio.to_thread(next, self, ended)) is not ended:
            yield claim

    def _wait_for_room(self) -> None:
        began = time.monotonic()
        until = None if self._timeout is None else began + self._timeout
        with self._changed:
            while not self._closed and len(self._open) - len(self._again) >= self._ahead:
                now = time.monotonic()
                if until is not None and now >= until:
                    raise TimeoutError(self._who_is_late(f"none was done within {self._timeout} s"))
                if until is None and not self._warned and now >= began + _PATIENCE_S:
                    self._warned = True
                    warn_user(
                        self._who_is_late(f"next() has waited {_PATIENCE_S:.0f} s for one to be done"), UserWarning
                    )
                looks_up = began + _PATIENCE_S if until is None and not self._warned else until
                self._changed.wait(None if looks_up is None else looks_up - now)
            self._waited_s += time.monotonic() - began
            self._check_open()

    def _who_is_late(self, what: str) -> str:
        oldest = min(self._open)
        return (
            f"{len(self._open)} claims are open (ahead={self._ahead}), and {what}; the oldest is item {oldest.ordinal} "
            f"of epoch {oldest.epoch}. Call done() or drop() for those that are finished, or raise ahead="
        )

    def _given_again(self) -> Claim[T] | None:
        with self._changed:
            if not self._again:
                return None
            number = self._again.popleft()
            entry = self._open[number]
            entry.version, entry.since = self._version, time.monotonic()
            return Claim(entry.item, number, self._version, self)

    def _look_ahead(self) -> None:
        """Have an item at hand that is to be given. Raises: StopIteration at the end of the epoch."""
        while self._at_hand is None:
            if self._stream is None or self._next is None:
                raise StopIteration
            if self._since_remembered * _REMEMBERED >= self._ahead:
                position = self._loader._position_now()
                with self._changed:
                    self._remember(position)
            try:
                item = next(self._stream)
            except StopIteration:
                position = self._loader._position_now()
                with self._changed:
                    self._stream, self._next = None, Number(position.epoch, position.delivered)
                    self._remember(position)
                raise
            with self._changed:
                self._since_remembered += 1
                if self._finished_to is None or self._next >= self._finished_to or self._next in self._left_open:
                    self._at_hand = (item,)
                else:
                    self._counts["passed"] += 1
                    self._next = self._next._replace(ordinal=self._next.ordinal + 1)

    def _taken(self) -> Claim[T]:
        with self._changed:
            assert self._at_hand is not None
            assert self._next is not None
            (item,), self._at_hand = self._at_hand, None
            number, self._next = self._next, self._next._replace(ordinal=self._next.ordinal + 1)
            self._left_open.discard(number)
            kept = item if self._max_staleness is not None and not self._drops_stale else None
            self._open[number] = _Open(self._version, time.monotonic(), item=kept)
            return Claim(item, number, self._version, self)

    def _remember(self, position: _Position) -> None:
        """Remember the loader's position, and forget those that are older than the oldest open claim needs."""
        assert self._next is not None
        self._remembered.append((self._next, position))
        self._since_remembered = 0
        self._forget()

    def _forget(self) -> None:
        oldest = min((*self._open, *self._left_open), default=self._next)
        assert oldest is not None
        while len(self._remembered) > 1 and self._remembered[1][0] <= oldest:
            self._remembered.popleft()

    # -- finishing -----------------------------------------------------------------------------------------------------

    def done(self, number: Number | tuple[int, int], result: Any = None) -> bool:
        """``number`` is finished, with ``groups`` for the so manieth time. False if the result came too late
        (``max_staleness``) and does not count. Raises: ValueError for a claim that is not open.
        """
        with self._changed:
            number, entry = self._entry(number)
            if self._max_staleness is not None and self._version - entry.version > self._max_staleness:
                if self._drops_stale:
                    self.drop(number, "stale")
                elif number not in self._again:
                    entry.results.clear()
                    self._counts["again"] += 1
                    self._again.append(number)
                    self._changed.notify_all()
                return False
            entry.results.append(result)
            if len(entry.results) == self._groups:
                if self._keeps_results:
                    self._results.append((number, entry.results))
                self._end(number, "done")
            return True

    def drop(self, number: Number | tuple[int, int], reason: str = "") -> None:
        """Nobody will finish ``number``, and no resume gives it again; ``stats().reasons`` counts by ``reason``.

        Raises: ValueError for a claim that is not open.
        """
        with self._changed:
            number, _ = self._entry(number)
            self._reasons[reason] = self._reasons.get(reason, 0) + 1
            self._end(number, "dropped")

    def advance(self) -> int:
        """There is a new version of what works on items (new weights): claims given from now on have it."""
        with self._changed:
            self._version += 1
            return self._version

    def take(self, count: int | None = None) -> list[tuple[Number, list[Any]]]:
        """Up to ``count`` kept results, the first ones that were done: (number, the results of its group) each."""
        if not self._keeps_results:
            raise RuntimeError("no results are kept: make the claims with keep_results=True")
        with self._changed:
            most = (
                len(self._results)
                if count is None
                else min(len(self._results), check_count("count", count, at_least=0))
            )
            return [self._results.popleft() for _ in range(most)]

    def stats(self) -> ClaimStats:
        """What has become of the claims. Any thread."""
        with self._changed:
            since = [entry.since for entry in self._open.values()]
            oldest = time.monotonic() - min(since) if since else 0.0
            return ClaimStats(
                open=len(since), oldest_s=oldest, waited_s=self._waited_s, reasons=dict(self._reasons), **self._counts
            )

    def close(self) -> None:
        """Forget what is open: the loader's state is its own again. Idempotent."""
        with self._changed:
            self._closed, self._stream, self._at_hand = True, None, None
            self._open.clear()
            self._again.clear()
            self._left_open.clear()
            self._changed.notify_all()

    def _entry(self, number: Number | tuple[int, int]) -> tuple[Number, _Open]:
        number = Number(*number)
        entry = self._open.get(number)
        if entry is None or number in self._again:
            raise ValueError(
                f"item {number.ordinal} of epoch {number.epoch} is not open: it is done or dropped already, or was not "
                "given since the state was loaded"
            )
        return number, entry

    def _end(self, number: Number, how: str) -> None:
        del self._open[number]
        self._counts[how] += 1
        self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise IteratorInvalidated("these claims are closed: make others with loader.claims(...)")

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
            self._forget()
            number, position = self._remembered[0]
            saved = {
                "from": number,
                "next": self._next if self._finished_to is None else max(self._next, self._finished_to),
                "open": sorted((*self._open, *self._left_open)),
                "version": self._version,
                "counts": dict(self._counts),
                "reasons": dict(self._reasons),
                "results": list(self._results),
                "ranks": self._loader._ranks_of_claims(),
            }
        return self._loader._state_at(position) | {KEY: as_text(encode(_plain(saved)))}

    def _load(self, saved: Mapping[str, Any]) -> None:
        """Take up what a state says of claims; the loader has taken up its own part."""
        with self._changed:
            self._stream = self._at_hand = None
            self._open.clear()
            self._again.clear()
            self._remembered.clear()
            self._left_open = {Number(*number) for number in saved["open"]}
            self._finished_to = Number(*saved["next"])
            self._next = Number(*saved["from"])
            self._remember(self._loader._position_now())
            self._version = saved["version"]
            self._counts = dict.fromkeys(self._counts, 0) | saved["counts"]
            self._reasons = dict(saved["reasons"])
            self._results = deque((Number(*number), list(results)) for number, results in saved["results"])
            self._changed.notify_all()


def _plain(value: Any) -> Any:
    """Numbers of items as lists, which every reader of a state has."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if type(value) is list:
        return [_plain(item) if isinstance(item, tuple) else item for item in value]
    return {name: _plain(item) for name, item in value.items()} if type(value) is dict else value


class Claimable:
    """Mixed into the loaders: they have at most one :class:`Claims` at work, whose state is theirs."""

    _claims: Claims[Any] | None = None
    _claims_to_load: dict[str, Any] | None = None  # what a loaded state says of claims that nobody has made yet
    _begins_claims = False

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
            made._load(loaded)
        return made  # type: ignore[no-any-return]

    def _iterate_claims(self, claims: Claims[Any]) -> Iterator[Any]:
        if self._claims is not claims:
            raise IteratorInvalidated("these claims are those of the loader no more: use the ones made last")
        self._begins_claims = True
        try:
            return iter(self)  # type: ignore[call-overload, no-any-return]
        finally:
            self._begins_claims = False

    def _check_no_claims(self, what: str) -> None:
        """Raises: RuntimeError where what follows would lose open claims."""
        if self._begins_claims:
            return
        if self._claims_to_load is not None:
            raise RuntimeError(
                f"the loaded state has open claims, which {what} would lose: go on with loader.claims(...), or load "
                "another state"
            )
        if self._claims is not None:
            left = self._claims.stats().open + len(self._claims._left_open)
            if left:
                raise RuntimeError(
                    f"{left} claims are open, which {what} would lose: go on with the claims, or call their close()"
                )
            self._claims.close()
            self._claims = None

    def _state_of_claims(self, exact: bool) -> dict[str, Any] | None:
        """The state, if claims are at work. Raises: StateError for one that is to be ``exact``."""
        if self._claims is None or not self._claims.at_work:
            return None
        if exact:
            raise StateError(
                "exact=True is for a loop without claims: open items are made again when the state is loaded. Let all "
                "be done and call claims.close() before"
            )
        return self._claims.state_dict()

    def _without_claims(self, state: Any, allow_pickle: bool) -> tuple[Any, dict[str, Any] | None]:
        """A state as the loader has it, and what it says of claims. Raises: StateError for damage."""
        if not isinstance(state, Mapping) or KEY not in state:
            return state, None
        rest = {name: value for name, value in state.items() if name != KEY}
        return rest, _read(state[KEY], self._ranks_of_claims(), allow_pickle)  # type: ignore[attr-defined]

    def _load_claims(self, saved: dict[str, Any] | None) -> None:
        """The loader has taken up a state, which says this of claims."""
        if self._claims is None:
            self._claims_to_load = saved
        elif saved is None:
            self._claims.close()
            self._claims = None
        else:
            self._claims._load(saved)


def _read(value: Any, ranks: list[int], allow_pickle: bool) -> dict[str, Any]:
    saved = decode(from_text(value), allow_pickle=allow_pickle) if isinstance(value, str) else None
    names = {"from", "next", "open", "version", "counts", "reasons", "results", "ranks"}
    if not isinstance(saved, dict) or saved.keys() != names:
        raise StateError(f"the claims of the state are damaged: {value!r:.60}. Use an older checkpoint")
    numbers = [saved["from"], saved["next"], *saved["open"]]
    sound = (
        all(type(number) is list and len(number) == 2 for number in numbers)
        and all(type(part) is int and part >= 0 for number in numbers for part in number)
        and saved["from"] <= saved["next"]
        and all(saved["from"] <= number < saved["next"] for number in saved["open"])
        and type(saved["version"]) is int
        and type(saved["counts"]) is type(saved["reasons"]) is dict
        and type(saved["results"]) is list
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
