"""The iterator of a loader: one epoch, item by item; and the running part of it, which the loader keeps as well.

Runs in the user's process.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from torchpipe.errors import StateError
from torchpipe.execution.clock import Clock
from torchpipe.execution.epoch import Epoch
from torchpipe.execution.merge import MergeIterator
from torchpipe.loader.epochs import Epochs
from torchpipe.loader.handing import StreamHanding
from torchpipe.loader.observing import Observed, left_over_of, merges_of, stages_of
from torchpipe.loader.run import Run
from torchpipe.loader.single_consumer import OneUser, refusal, refuse_pickling
from torchpipe.loader.state import LoaderState
from torchpipe.loader.untraced import untraced
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.tolerance import forget
from torchpipe.node.validate import check_count
from torchpipe.stats import FeedStats

__all__ = ["DataLoader2Iterator", "Pass"]

T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")


class Pass:
    """An epoch at work: its stream, and where that stands. The loader has it until the next one begins."""

    def __init__(self, run: Run, numbers: Epoch, loaded: LoaderState | None) -> None:
        self.guard = OneUser("loader's iterator")
        self.finished = self.over = self.closed = False
        self.before = 0 if loaded is None else loaded.delivered
        self.numbers, self.stream = run.begin(numbers, loaded)
        self.handing = StreamHanding(self.stream, self.before)
        self.clock = self.handing.clock
        if isinstance(self.stream, MergeIterator) and self.stream.delivered != self.before:
            self.stream.close()
            raise StateError(
                f"the state is damaged: it says that {self.before} items were delivered, and its position stands "
                f"after {self.stream.delivered}. Use an older checkpoint"
            )

    @property
    def epoch(self) -> int:
        return self.numbers.epoch

    @property
    def delivered(self) -> int:
        """The number of items of the epoch that have been handed out, those before a restore included."""
        return self.handing.number

    @property
    def had(self) -> int:
        """The number of those since this pass began; what it costs does not depend on the number of shards."""
        return self.clock.items - len(self.handing.hand)

    def position(self) -> LoaderState:
        """After the last item delivered. Raises: RuntimeError inside ``next``."""
        return self.guard.read("state_dict()", self._position)

    def _position(self) -> LoaderState:
        # Not the stream's count: in another thread, a call of next() may begin meanwhile
        position = self.handing.position()
        delivered = sum(position["counts"]) if isinstance(self.stream, MergeIterator) else self.delivered
        return LoaderState.at(self.numbers, delivered, position)

    def observe(self) -> Observed:
        """The figures of this epoch in this process. Any thread."""
        return Observed.of(
            self.clock,
            merges_of(self.stream),
            stages_of(self.stream),
            epoch=self.numbers.epoch,
            delivered=self.delivered,
            before=self.before,
            finished=self.finished,
            over=self.over or self.closed,
            left_over=left_over_of(self.stream),
        )

    def stop(self, *, finished: bool) -> None:
        """No item follows: of the epoch (``finished``), or because of an exception."""
        try:
            if finished:
                self.stream.close()
                self.finished = True  # before it is over: who looks from another thread sees an epoch that goes on
        finally:
            self.over = True
            self.clock.close()

    def interrupt(self) -> None:
        """Let a ``next`` in another thread return at once, if the stream can."""
        if not self.guard.here:
            self.stream.interrupt()

    def refuse_inside(self, what: str) -> None:
        """Raises: RuntimeError where this thread is in the midst of ``next``, naming ``what`` is asked for."""
        self.guard.read(what, lambda: None)

    def close(self) -> None:
        """The loader has no more use for this epoch: let go of all. Raises: RuntimeError inside ``next``."""
        self.guard.read("closing the loader", self._close)

    def _close(self) -> None:
        self.closed = True
        self.guard.block = []
        self.clock.close()
        self.stream.close()


class DataLoader2Iterator(Iterator[T_co]):
    """One epoch of a loader. After an exception or the end it is over; the loader can be iterated again or restored.

    ``next`` raises StopIteration at the end of the epoch, where ``finished`` becomes True, and at a :meth:`limit`,
    where ``paused`` becomes True: the position is kept, and after :meth:`resume` the next ``for`` over this same
    iterator goes on. A new ``iter(loader)`` ends it, paused or not, and has no limit. One thread at a time; a second
    one is refused.
    """

    def __init__(self, run: Run, epochs: Epochs[LoaderState], work: Pass) -> None:
        self._run = run
        self._epochs = epochs
        self._pass = work
        self._guard = work.guard
        self._paused = False
        self._limit: int | None = None
        self._pause_at: int | None = None  # after so many items of this pass
        self._looked_at = False

    @property
    def finished(self) -> bool:
        """True once all of the epoch has been handed out, and StopIteration been raised."""
        return self._pass.finished

    @property
    def epoch(self) -> int:
        """The epoch that its items are of."""
        return self._pass.epoch

    @property
    def goes_on(self) -> bool:
        """True if another item may follow."""
        return not (self._pass.over or self._pass.closed)

    @property
    def delivered(self) -> int:
        """The number of items of the epoch that have been handed out, those before a restore included."""
        return self._pass.delivered

    @property
    def paused(self) -> bool:
        return self._paused

    def limit(self, num_batches: int | None) -> None:
        """Pause after each ``num_batches`` items, counted from now; None: no more pauses.

        The limit stays over pauses: every :meth:`resume` gives that many items more. It ends no pause by itself. An
        epoch that ends just after the last item allowed is found finished by the first ``next`` after ``resume``.

        Raises: TypeError or ValueError unless it is None or at least 1.
        """
        self._limit = None if num_batches is None else check_count("num_batches", num_batches, at_least=1)
        self._count_anew()

    def _count_anew(self) -> None:
        self._pause_at = None if self._limit is None else self._pass.had + self._limit
        self._guard.block = []

    def resume(self) -> None:
        """End a pause; without one, nothing happens."""
        self._paused = False

    def pause(self) -> None:
        """Let ``next`` raise StopIteration until :meth:`resume`.

        Processes and threads stay, and fill what they may run ahead (``worker_prefetch_cnt`` and so on) but no more:
        there is nothing to halt. States are exact at any time, paused or not.
        """
        self._paused = True
        self._count_anew()

    def __next__(self) -> T_co:
        block = self._guard.block
        while True:
            if not block:
                block = self._ready()
            try:
                item: T_co = block[-1]
                del block[-1]  # it counts from here on; no call follows, at which a signal's handler could raise
            except IndexError:  # another thread has taken the last one
                continue
            return item

    @untraced
    def _ready(self) -> list[Any]:
        """Items that are there, the next one last. Whoever deletes it has been handed it. Raises: as ``next``."""
        return self._guard.take(self._advance)

    def _advance(self) -> list[Any]:
        try:
            return self._take()
        except StopIteration:
            if not (self._paused or self._pass.finished):
                self._end()
            raise

    def _take(self) -> list[Any]:
        work = self._pass
        if self._pause_at is not None and work.had >= self._pause_at and self.goes_on:
            self.pause()
        if work.closed or work.over or self._paused:
            self._check_valid()
            raise StopIteration
        try:
            hand = work.handing.ready()
        except StopIteration:
            raise
        except BaseException as error:
            forget(error)
            work.stop(finished=False)
            self._epochs.park(work, work.position, failed=True)
            raise
        if self._pause_at is None and not self._paused and isinstance(work.stream, MergeIterator):
            self._guard.block = hand
        return hand

    def _check_valid(self) -> None:
        work = self._pass
        if not (work.finished or self.goes_on):
            raise refusal(work.epoch, superseded=work.closed) from None

    def _end(self) -> None:
        self._check_valid()  # another thread has closed the stream: that is no end of the epoch
        work = self._pass
        work.stop(finished=True)
        self._epochs.end(work)
        self._run.observed = work.observe()
        self._run.tell_left_over(left_over_of(work.stream))

    @untraced
    def skip(self, count: int) -> int:
        """Take the next ``count`` items, or what is left, for nobody: how many. A pause or limit ends it as it would a
        loop. The epoch is over once ``next`` finds nothing left. Raises: what making them raises.
        """
        passed = 0
        with suppress(StopIteration):
            while passed < count:
                self._guard.take(self._pass_one)
                passed += 1
        return passed

    def _pass_one(self) -> None:
        del self._take()[-1]

    @untraced
    def state_dict(self) -> dict[str, Any]:
        """The position in this epoch, as :meth:`DataLoader2.state_dict` has it; at its end, that of an empty rest.

        This rank's. The loader's own, when the ``for`` loop has ended, is the start of the next epoch instead.
        """
        return self._run.tell(self._run.own_state(self.position()))

    def position(self) -> LoaderState:
        """The position that :meth:`state_dict` writes down."""
        return self._pass.position()

    @property
    def figures_handle(self) -> Run:
        """The run, which can be asked for :meth:`Run.stats` when this iterator and its loader are gone."""
        work = self._pass
        if not work.finished:
            self._run.observed = work.observe()
            if not self._looked_at:
                self._looked_at = True
                weakref.finalize(self, _see_last, self._run, work.stream, work.clock).atexit = False
        return self._run

    def stats(self) -> FeedStats:
        """The pace of the stage nearest to the loop that runs ahead in this process (``to_device``, ``prefetch``).

        The first of ``loader.stats().stages``. Raises: RuntimeError if there is none. At any time, from any thread.
        """
        for stage in stages_of(self._pass.stream):
            return stage.feed
        raise RuntimeError(
            "nothing runs ahead or moves batches in this process, so there are no stats: they are of to_device(), of "
            "device= of a reading service, and of prefetch()"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_pickling(self)


def _see_last(run: Run, stream: NodeIterator[Any], clock: Clock) -> None:
    """An iterator has been dropped in mid-epoch: tell ``run`` what it came to."""
    seen = run.observed
    if seen is None or seen.state != "running":
        return
    taken = (
        stream.delivered if isinstance(stream, MergeIterator) else seen.delivered - seen.consumer.items + clock.items
    )
    consumer = clock.consumer(taken - (seen.delivered - seen.consumer.items))
    run.observed = replace(seen, delivered=taken, consumer=consumer, timeline=clock.timeline(), state="closed")
