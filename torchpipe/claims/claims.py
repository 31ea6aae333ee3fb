"""The consumer's side: ``Claims``, and one epoch of them, for ``for`` and for ``async for``.

Runs in the user's process. One thread pulls items (``EpochOfClaims.lock``) and waits for nobody else.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, Literal, Self, TypeVar

from torchpipe.claims.driver import ClaimsDriver
from torchpipe.claims.saved import Item, check_loader, makes_items
from torchpipe.claims.window import Claim, ClaimStats, Number, Window
from torchpipe.node.validate import check_choice, check_count, check_seconds
from torchpipe.randomness.global_random import may_change_states

__all__ = ["Claims", "EpochOfClaims"]

T = TypeVar("T")

_REMEMBERED = 8  # positions that are remembered while as many items are taken as may be open


class Claims(Generic[T]):
    """The items of a loader as claims. ``for claim in claims`` is one epoch, as with the loader.

    One thread iterates (or one asyncio task, by ``async for``); :meth:`done`, :meth:`drop` and :meth:`state_dict` may
    be called from any thread. What is open when the loop ends stays open, and counts in the next epoch. What the loader
    passes over when it raises (a sample of a map-style dataset), claims pass over as well. ``loader.claims(...)`` makes
    one, too.

    Args:
        loader: a ``DataLoader`` or ``DataLoader2``, which is kept alive.
        ahead: the most claims that are open: ``next`` waits until one is done or dropped.
        groups: so many times a claim has to be ``done`` until it is (rollouts of one prompt).
        timeout: seconds that ``next`` waits; None: without end (with a warning after a minute).
        max_staleness: a result that arrives after more calls of :meth:`advance` than that does not count.
        stale: what becomes of such a claim: ``"again"``, it is given again, before new ones; ``"drop"``. If it comes
            back when the loop has ended, the next ``for`` gives what has come back, and no more.
        keep_results: copies of results are kept, with the state too, until :meth:`take` takes them. They must be plain
            data.

    State: the loader's, as long as claims are at work. A resume gives the open claims again, in order, and goes on
    behind the last one given. It makes the items between the oldest open one and the last one again, and those of up to
    ``ahead / 8`` more.

    Raises: TypeError or ValueError for arguments out of range, for a loader whose items come in any order, and for one
    whose ranks wait for each other; RuntimeError while other claims of the loader are open, or a loop has begun what
    was loaded, and had nothing of it.
    """

    def __init__(
        self,
        loader: Any,
        ahead: int = 64,
        *,
        groups: int = 1,
        timeout: float | None = None,
        max_staleness: int | None = None,
        stale: Literal["again", "drop"] = "again",
        keep_results: bool = False,
    ) -> None:
        check_loader(loader)
        check_choice("stale", stale, ("again", "drop"))
        self._loader, self._driver = loader, ClaimsDriver()
        self._window: Window[T] = (window := self._driver.window)
        window.ahead = check_count("ahead", ahead, at_least=1)
        window.groups = check_count("groups", groups, at_least=1)
        window.timeout = None if timeout is None else check_seconds("timeout", timeout)
        most = max_staleness
        window.max_staleness = None if most is None else check_count("max_staleness", most, at_least=0)
        window.drops_stale, window.keeps_results = stale == "drop", bool(keep_results)
        before = loader.driver  # it hands on what was loaded, unless a loop has begun that
        loaded = None if before is None or loader._coming()[1] else before.loaded
        if loaded is not None:
            before.close()
        elif before is not None:
            before.let_go(loader, "other claims")
        loader.driver = self._driver
        self._driver.take_up(loaded)

    @property
    def epoch(self) -> int:
        """The epoch that the next ``for`` gives claims of, or the one at work: ``while claims.epoch < epochs``."""
        with self._window.lock:
            back = min(self._window.back, default=None)
        return int(self._loader.epoch) if back is None else back[0]

    def __iter__(self) -> EpochOfClaims[T]:
        """Begin the next epoch, or go on with the rest of a loaded one; or what has come back, if there is any.

        Raises: RuntimeError where open claims would be lost; IteratorInvalidated after :meth:`close`.
        """
        loop = self.__aiter__()
        self._driver.begin(self._loader, loop)
        return loop

    def __aiter__(self) -> EpochOfClaims[T]:
        """An epoch as ``iter`` gives it; its first item begins it."""
        return EpochOfClaims(self._driver, self._loader)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until no claim is open in this process. Raises: TimeoutError after ``timeout`` seconds."""
        self._window.wait(timeout)

    def done(self, number: Number | tuple[int, ...], result: Any = None) -> bool:
        """``number`` is finished; with ``groups``, one time more. False if that does not count: it came too late
        (``max_staleness``), or the item has been given again since.

        ``number``: ``claim.number``, or (epoch, ordinal). Raises: ValueError for a claim that is not open; TypeError.
        """
        return self._window.done(number, result)

    def drop(self, number: Number | tuple[int, ...], reason: str = "") -> bool:
        """Nobody will finish ``number``, and no resume gives it again; ``stats().reasons`` counts by ``reason``. False
        if it has been given again since, to somebody who may finish it.

        Raises: ValueError for a claim that is not open; TypeError.
        """
        return self._window.drop(number, reason)

    def advance(self) -> int:
        """There is a new version of what works on items (new weights): claims given from now on have it."""
        with self._window.lock:
            self._window.version += 1
            return self._window.version

    def take(self, count: int | None = None) -> list[tuple[tuple[int, int], list[Any]]]:
        """Up to ``count`` kept results, the first ones that were done: ((epoch, ordinal), the results of its group)."""
        asked = None if count is None else check_count("count", count, at_least=0)
        with self._window.lock:
            results = self._window.results
            if not self._window.keeps_results and not results:
                raise RuntimeError("no results are kept: make the claims with keep_results=True")
            return [results.popleft() for _ in range(len(results) if asked is None else min(len(results), asked))]

    def stats(self) -> ClaimStats:
        """The figures of the claims. Any thread."""
        window = self._window
        with window.lock:
            since = [entry.since for entry in window.open.values()]
            return ClaimStats(
                open=len(since) + len(window.unseen),
                oldest_s=time.monotonic() - min(since) if since else 0.0,
                waited_s=window.waited_s,
                reasons=dict(window.reasons),
                **window.counts,
            )

    def state_dict(self) -> dict[str, Any]:
        """The loader's: its own, and the claims that are open, at any time. It loads into a loader by
        ``load_state_dict``, whose claims then give the open ones again.
        """
        return self._loader.state_dict()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Forget what is open, the item that a waiting ``next`` has at hand, and what a loaded state says is done
        behind the loader's own position: the loader's state is its own again. Idempotent.
        """
        self._driver.close()


class EpochOfClaims(Iterator[Claim[T]], AsyncIterator[Claim[T]], Generic[T]):
    """One epoch of claims: what ``iter(claims)`` returns. ``stream``: the loader's iterator, until it has ended; None
    where there is nothing but what has come back. ``at_hand``: the item that comes next, once it is made.

    A call of ``anext`` that is cancelled takes nothing, and leaves nobody waiting.
    """

    def __init__(self, driver: ClaimsDriver, loader: Any) -> None:
        self._driver, self._window, self._loader = driver, driver.window, loader
        self.stream: Any = None
        self.epoch = self.first = 0  # where the stream begins
        self.lock = threading.Lock()  # of the thread that pulls
        self.at_hand: tuple[Item, T] | None = None
        self.begun = self._over = False

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> Claim[T]:
        """The next claim. Raises: TimeoutError if as many as may be are still open after ``timeout``, and the next call
        goes on there; what the loader raises, and this one then goes on, or is over, as the loader's iterator.
        """
        while self.look():
            began = time.monotonic()
            with self._window.lock:
                while not self._driver.has_room(self):
                    self._window.sleep(began)
                if (claim := self._driver.take(self)) is not None:
                    return claim
        raise StopIteration

    async def __anext__(self) -> Claim[T]:
        while await self._look_in_time():
            began = time.monotonic()
            while True:
                with self._window.lock:
                    if self._driver.has_room(self):
                        if (claim := self._driver.take(self)) is not None:
                            return claim
                        break
                    sleeping = self._window.sleeping(began)  # of claims that are open by now
                await sleeping
        raise StopAsyncIteration

    async def _look_in_time(self) -> bool:
        """Call :meth:`look`, without blocking the event loop. An item may take long to make, and then stays at hand.
        Items of this process are made in this thread, under the random states that are its own.
        """
        try:
            if may_change_states() and makes_items(self._loader):
                return self.look()
            return await asyncio.to_thread(self.look)
        except StopAsyncIteration as error:
            raise RuntimeError("the loader's code has raised StopAsyncIteration, which would end the loop") from error

    def look(self) -> bool:
        """True once there is a claim to give. The item is made before there is room for it: an epoch ends at once."""
        driver = self._driver
        with self.lock:
            if not self.begun:
                driver.begin(self._loader, self)
            while True:
                with self._window.lock:
                    if self._over:
                        return False
                    driver.check_at_work(self)
                    if self._window.back or self.at_hand is not None:
                        return True
                    if self.stream is not None and driver.has_no_more(self.epoch):
                        self.stream = None
                        driver.came(self)
                        self._loader.set_epoch(self.epoch + 1)
                    if self.stream is None:
                        self._over = True
                        return False
                if driver.since_remembered * _REMEMBERED >= self._window.ahead:
                    position = self._loader._position_now()
                    with self._window.lock:
                        driver.check_at_work(self)
                        driver.remember(position)
                self._pull()

    def _pull(self) -> None:
        """Have the next item at hand, unless it is one that was finished before."""
        driver, window, stream = self._driver, self._window, self.stream
        assert driver.next is not None
        expected = driver.next
        try:
            value = next(stream)
            with window.lock:
                driver.check_at_work(self)
                item = (self.epoch, stream.delivered - 1)
                driver.since_remembered += 1
                if driver.was_finished(item):
                    window.counts["passed"] += 1
                    driver.next = (item[0], item[1] + 1)
                else:
                    driver.next, self.at_hand = item, (item, value)
        except StopIteration:
            self.stream = None
        except BaseException as error:
            failed = self.epoch, stream.delivered
            if isinstance(error, Exception) and stream.goes_on and driver.was_finished(failed):
                return  # the run before has passed over it, too
            with window.lock:
                taken = driver.is_at_work(self) and self.at_hand is None and stream.delivered > expected[1]
                if taken and not isinstance(error, Exception) and not driver.was_finished(expected):
                    window.unseen.add(expected)  # an interrupt has taken it on its way
            raise
        finally:
            if self.stream is None or stream.delivered > self.first:
                with window.lock:
                    driver.came(self)
