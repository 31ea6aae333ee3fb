"""Batches of a map-style dataset made by workers, each of whom is dealt the indices of what it is to make.

Runs in the user's process. The sampler is asked, and batches are dealt, in the thread that iterates the loader: its
code and its draws are the user's. Batches are taken there too; with a device stage, in the stage's thread, which waits
for what is dealt (``_has_turns``) until there is more, the epoch is over, or :meth:`AssignedBatches.interrupt`.

Torch's loader asks the sampler for ``prefetch_factor`` batches for each worker at the start, and for one more with each
batch that it hands out. A sampler that could tell is asked just so. Others are asked further ahead, as many as a worker
makes while two messages are on their way: small batches travel together, and a message for each would be slow.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchpipe.ahead.waiting import Bell
from torchpipe.data.batches import Batches, has_stage
from torchpipe.data.figures import Steps
from torchpipe.data.order.sampling import Order
from torchpipe.data.workers import Dealing
from torchpipe.errors import IteratorInvalidated, StateError, add_note, raise_error_of
from torchpipe.execution.clock import Clock
from torchpipe.execution.figures import ServiceFigures
from torchpipe.execution.shard import Chunk
from torchpipe.state import Cursor
from torchpipe.stats import MergeStats

if TYPE_CHECKING:
    from torchpipe.data.loader import DataLoader

__all__ = ["AssignedBatches", "ending_what_fails", "lane_cursors"]

_LOOK_S = 1.0
_MOST_AHEAD = 4096  # batches that are dealt to a worker and not back


def lane_cursors(lanes: int, saved: list[Any] | None) -> list[Cursor]:
    """The start of each worker: that of the epoch, or, of one that has a state of its own, its cursor."""
    if saved is None:
        return [Cursor()] * lanes
    cursors = [cursor for item in saved if (cursor := Cursor.from_state(item)) is not None]
    if not len(cursors) == len(saved) == lanes:
        raise StateError(
            f"the state has the states of {len(saved)} workers (worker_seeding='torch', or a dataset with a "
            f"state_dict of its own), and this loader has num_workers={lanes}: load it with as many"
        )
    return cursors


@contextmanager
def ending_what_fails(workers: Dealing, *, keeps: bool) -> Iterator[None]:
    """While an epoch begins: nobody else can end ``workers`` that were started for it alone, if that raises."""
    try:
        yield
    except BaseException:
        if not keeps:
            workers.close()
        raise


@dataclass(frozen=True, slots=True)
class _Delivered:
    """The batches that have been handed out. Replaced as a whole: an interrupt finds these before a batch, or after it.

    ``number``: batches before which all are past; ``done``: those from there on that are; of workers with states, the
    ``cursors``, and what each was dealt since its cursor's snapshot: it makes that ``again`` to find its position.
    """

    number: int
    done: frozenset[int]
    cursors: tuple[Cursor, ...] | None
    again: tuple[tuple[Any, ...], ...]

    def made(self, lane: int, entry: Any, snapshot: bytes | None) -> _Delivered:
        """After worker ``lane`` made one; ``snapshot``, if there is one, is of after it."""
        if self.cursors is None:
            return self
        cursors, again = list(self.cursors), list(self.again)
        cursors[lane] = cursors[lane].after(1, snapshot)
        again[lane] = (*again[lane], entry) if snapshot is None else ()
        return _Delivered(self.number, self.done, tuple(cursors), tuple(again))

    def past(self, batch: int) -> _Delivered:
        """After ``batch`` was handed out, and is not to come again."""
        number, done = self.number, self.done
        if batch != number or done:
            done |= {batch}
            while number in done:
                done -= {number}
                number += 1
        else:
            number += 1
        return _Delivered(number, done, self.cursors, self.again)


class AssignedBatches(Batches):
    """Batch i is made by worker i % n, and handed out in order; without ``in_order``, as they come.

    ``position`` is what :meth:`position` gave, or empty. ``done`` in it: batches from ``order.number`` on that were
    handed out before, though an earlier one was not; ``again``: of each lane, the entries that the cursor of
    ``cursors`` skips, and that ``workers`` have been dealt.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        order: Order,
        workers: Dealing,
        position: dict[str, Any],
        cursors: list[Cursor] | None = None,
    ) -> None:
        self.clock = Clock()
        self._steps = Steps(loader)
        self._rebuilt_before_s = workers.rebuild_s
        self._lane_s = [0.0] * loader.num_workers  # of each lane: how long it was waited for
        self._order = order
        self._workers = workers
        self._lanes = lanes = loader.num_workers
        self._in_order = loader.in_order
        self._timeout_s = loader.timeout or None
        self._ends_workers = not loader.persistent_workers
        self._prefetch = loader.prefetch_factor or 1
        # Batches that each worker should have been dealt and not have sent back; in order, as many for all of them
        self._targets = [self._prefetch] * lanes
        self._over = False  # the sampler has ended
        self.error: BaseException | None = None  # how it ended, if not well
        self._turns = deque[int]()  # whose are the batches that were dealt, in order
        self._assigned = [deque[tuple[int, Any]]() for _ in range(lanes)]  # of each lane: number and what was dealt
        self._chunks = [Chunk() for _ in range(lanes)]  # what is at hand of each lane
        self.hand: list[Any] = []
        self._before = self._behind = _Delivered(  # the batch in hand
            order.number,
            frozenset(position.get("done", ())),
            None if cursors is None else tuple(cursors),
            tuple(map(tuple, position.get("again") or [()] * lanes)),
        )
        self._skip = set(self._behind.done)  # those that the sampler has not come to
        self._taken_ahead = has_stage(loader)  # in another thread
        self._has_turns = Bell()
        self._interrupted = False
        self._passing = False  # nothing is dealt meanwhile
        # As many as torch's loader, which draws no more while a batch waits in pinned memory; for a device, more
        options = loader._device_options
        self._deal(self._prefetch * lanes + (0 if options is None else options.device_prefetch))

    @property
    def _delivered(self) -> _Delivered:
        return self._before if self.hand else self._behind

    @property
    def number(self) -> int:
        return self._delivered.number

    def position(self) -> dict[str, Any]:
        delivered = self._delivered
        position: dict[str, Any] = {"done": sorted(delivered.done)} if delivered.done else {}
        if delivered.cursors is not None:
            position["lanes"] = [cursor.to_state() for cursor in delivered.cursors]
            position["again"] = [list(entries) for entries in delivered.again]
        return position

    @property
    def processes(self) -> list[Any]:
        return self._workers.processes

    def merges(self) -> tuple[MergeStats, ...]:
        rebuild_s = self._workers.rebuild_s - self._rebuilt_before_s
        return (MergeStats(wait_s=self.clock.waited_s(), shard_wait_s=tuple(self._lane_s), rebuild_s=rebuild_s),)

    def figures(self) -> ServiceFigures:
        figures = self._workers.figures()
        return replace(
            figures, workers=self._workers.num_workers, nodes=self._steps.rows(figures.made.get("shard", ()))
        )

    def interrupt(self) -> None:
        self._interrupted = True
        self._has_turns.notify()
        self._workers.interrupt()

    def deal_more(self) -> None:
        """Before the loop takes a batch from the stage that takes them here: let more be made."""
        if self._order.may_run_ahead:
            self._fill_rooms()
        elif not self._over:
            self._deal(1)

    def close(self) -> None:
        if self._ends_workers:
            self._workers.close()
        else:
            self._workers.end_epoch()

    def fill(self) -> list[Any]:
        self._before = self._behind
        lane = self._next_lane()
        chunk, assigned = self._chunks[lane], self._assigned[lane]
        batch, (number, entry) = chunk.items[-1], assigned[0]
        behind = self._before.made(lane, entry, chunk.snapshot if len(chunk.items) == 1 else None).past(number)
        chunk.items.pop()
        assigned.popleft()
        self._turns.popleft()  # out of order, they only count
        self.hand.append(batch)
        self._behind = behind
        if not (self._order.may_run_ahead or self._over or self._taken_ahead or self._passing):
            self.clock.begin_wait()
            self._deal(1)
            self.clock.end_wait(0)
        return self.hand

    def pass_over(self, count: int) -> int:
        """Make the batches that were dealt, and of workers with states, or out of order, all."""
        passed = self._pass_hand(count)
        self._passing = self._in_order and self._behind.cursors is None and not self._taken_ahead
        try:
            left = count - passed
            passed += super().pass_over(min(left, len(self._turns)) if self._passing else left)
        finally:
            passing, self._passing = self._passing, False
        while passing and passed < count and not self._over:
            try:
                next(self._order)
            except StopIteration:
                self._deal(1)  # which ends the epoch for workers too
                break
            number = self._order.number - 1
            if number in self._skip:
                self._skip.discard(number)
                continue
            self._behind = self._behind.past(number)
            passed += 1
        return passed

    def _next_lane(self) -> int:
        """A lane that has the next batch at hand. Raises: StopIteration at the end; what ended a lane."""
        while self._turns or not self._over:
            if not self._turns:  # what had been dealt is used up, or was all done before
                if self._taken_ahead:
                    self._wait_for_turns()
                else:
                    self._deal(sum(self._targets))
                continue
            for lane in self._awaited():
                chunk = self._chunks[lane]
                if chunk.items:
                    return lane
                if chunk.error is not None:
                    number, (_, indices) = self._assigned[lane][0]
                    add_note(chunk.error, f"torchpipe: the next batch was number {number}, of {indices!r:.200}")
                    raise_error_of(chunk)
            self.clock.begin_wait()
            self.clock.end_wait(self._pull())
        if self.error is not None:
            raise_error_of(self)
        raise StopIteration

    def _wait_for_turns(self) -> None:
        """Until the loop's thread has dealt more."""
        bell = self._has_turns
        try:
            while not (self._turns or self._over):
                if self._interrupted:
                    raise IteratorInvalidated(
                        "the epoch was ended from another thread while its next batch was awaited"
                    )
                if bell.awaited:
                    bell.hear(_LOOK_S)
                bell.awaited = True  # said first: then it looks once more
        finally:
            bell.awaited = False

    def _awaited(self) -> list[int]:
        """The lanes of which any may give the next batch."""
        return [self._turns[0]] if self._in_order else [lane for lane, left in enumerate(self._assigned) if left]

    def _pull(self) -> int:
        """Wait for batches of one lane: how many have come."""
        if self._order.may_run_ahead and not (self._taken_ahead or self._passing):
            self._fill_rooms()
        began = time.perf_counter()
        # Only now: whoever had nothing left may just have been dealt some, and must be awaited with the others
        try:
            lane, chunk = self._workers.pull_any(self._awaited(), self._timeout_s)
        except RuntimeError as error:
            self._tell_what_is_awaited(error)
            raise
        self._lane_s[lane] += time.perf_counter() - began
        target = max(self._targets[lane], min(_MOST_AHEAD, 2 * (self._prefetch + 1) * len(chunk.items)))
        if self._in_order:
            self._targets = [target] * self._lanes
        else:  # nobody waits for what lies at a slow one, if little does
            self._targets[lane] = target
        chunk.items.reverse()
        self._chunks[lane] = chunk
        return len(chunk.items)

    def _fill_rooms(self) -> None:
        rooms = self._rooms()
        if any(2 * room >= target for room, target in zip(rooms, self._targets)):
            self._deal(max(rooms) * self._lanes if self._in_order else sum(room for room in rooms if room > 0))

    def _tell_what_is_awaited(self, error: RuntimeError) -> None:
        """``error`` may be that of the timeout: it cannot know which batch that is."""
        if type(error) is RuntimeError and str(error).startswith("DataLoader timed out"):
            number, lane = min((self._assigned[lane][0][0], lane) for lane in self._awaited())
            indices = self._assigned[lane][0][1][1]
            error.args = (f"{error}: worker {lane} has not made batch {number}, of {indices!r:.200}",)

    def _deal(self, batches: int) -> None:
        """Ask the sampler for so many batches more, and let them be made."""
        if self._over:
            return
        entries: list[list[tuple[int, Any]]] = [[] for _ in range(self._lanes)]
        turns: list[int] = []
        rooms, over = self._rooms(), False
        began = time.perf_counter()
        while len(turns) < batches:  # those that a state says are done do not count: somebody waits for one that does
            try:
                indices = next(self._order)
            except StopIteration:
                over = True
                break
            except Exception as error:  # raised in its place: what is before it comes first
                over, self.error = True, error
                break
            number = self._order.number - 1
            if number in self._skip:
                self._skip.discard(number)
                continue
            lane = number % self._lanes
            if not self._in_order:  # to the one with most room
                lane = rooms.index(max(rooms))
                rooms[lane] -= 1
            turns.append(lane)
            entries[lane].append((number, (self._order.key(number), indices)))
        self._steps.sampler_s += time.perf_counter() - began
        self._steps.asked += len(turns)
        for lane, assigned in enumerate(entries):
            if assigned or over:
                self._workers.deal(lane, [entry for _, entry in assigned], over=over)
                self._assigned[lane].extend(assigned)
        # Last: a device stage's thread takes what it finds here
        self._turns.extend(turns)
        self._over = over
        self._has_turns.notify()

    def _rooms(self) -> list[int]:
        """The number of batches more that each worker should be dealt."""
        return [target - self._workers.outstanding(lane) for lane, target in enumerate(self._targets)]
