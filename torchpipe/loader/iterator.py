"""What ``iter(loader)`` returns: one epoch, item by item, and its position.

Runs in the user's process.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from threading import get_ident
from typing import Any, NoReturn, Self, TypeVar

from torchpipe.ahead.at_exit import hold_at_exit
from torchpipe.compat.torch_private import COMPILER
from torchpipe.errors import IteratorInvalidated, StateError
from torchpipe.execution.epoch import Epoch
from torchpipe.execution.merge import MergeIterator
from torchpipe.loader.observing import Observed, left_over_of, merges_of, stages_of
from torchpipe.loader.run import Run
from torchpipe.loader.single_consumer import OneUser, Process, refuse_pickling
from torchpipe.loader.state import LoaderState
from torchpipe.loader.untraced import untraced
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_count
from torchpipe.stats import FeedStats
from torchpipe.stats.clock import Clock

__all__ = ["DataLoader2Iterator"]

T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")


class DataLoader2Iterator(Iterator[T_co]):
    """One epoch of a loader. After an exception or the end it is over; the loader can be iterated again or restored.

    ``next`` raises StopIteration at the end of the epoch, where ``finished`` becomes True, and at a :meth:`limit`,
    where ``paused`` becomes True: the position is kept, and after :meth:`resume` the next ``for`` over this same
    iterator goes on. A new ``iter(loader)`` ends it, paused or not, and has no limit. One thread at a time; a second
    one is refused.
    """

    def __init__(self, run: Run, numbers: Epoch, loaded: LoaderState | None) -> None:
        self.finished = False
        self._run = run
        self._guard = OneUser("loader's iterator")
        self._paused = False
        self._limit: int | None = None
        self._left: int | None = None  # items until the next pause
        self._over = self._invalid = False
        self._block: list[Any] = []  # items that are there, the next one last: to pop one hands it out
        self._loaded_at = 0 if loaded is None else loaded.delivered
        self._resumed = loaded is not None and loaded.has_begun
        self._looked_at = False
        self._at_end = loaded is not None and run.at_end(loaded)  # as the length says: to be seen
        self._take_stream(*run.begin(numbers, loaded))
        if isinstance(self._stream, MergeIterator) and self._stream.delivered != self._loaded_at:
            self._stream.close()
            raise StateError(
                f"the state is damaged: it says that {self._loaded_at} items were delivered, and its position stands "
                f"after {self._stream.delivered}. Use an older checkpoint"
            )

    @property
    def epoch(self) -> int:
        """The epoch that the next item is of: after a state of the end of one, where that is known, the next one."""
        return self._numbers.epoch + self._before_next_epoch()

    @property
    def delivered(self) -> int:
        """The number of items of the epoch that have been handed out, those before a restore included."""
        return 0 if self._before_next_epoch() else self._delivered()

    def _before_next_epoch(self) -> bool:
        return self._at_end and self._delivered() == self._loaded_at

    def _delivered(self) -> int:
        stream = self._stream
        return stream.delivered if isinstance(stream, MergeIterator) else self._loaded_at + self._clock.items

    @property
    def paused(self) -> bool:
        return self._paused

    def __iter__(self) -> Self:
        return self

    def limit(self, num_batches: int | None) -> None:
        """Pause after each ``num_batches`` items, counted from now; None: no more pauses.

        The limit stays over pauses: every :meth:`resume` gives that many items more. It ends no pause by itself. An
        epoch that ends just after the last item allowed is found finished by the first ``next`` after ``resume``.

        Raises: TypeError or ValueError unless it is None or at least 1.
        """
        self._limit = self._left = None if num_batches is None else check_count("num_batches", num_batches, at_least=1)
        self._block = []

    def resume(self) -> None:
        """End a pause; without one, nothing happens."""
        self._paused = False

    def pause(self) -> None:
        """Let ``next`` raise StopIteration until :meth:`resume`.

        Processes and threads stay, and fill what they may run ahead (``worker_prefetch_cnt`` and so on) but no more:
        there is nothing to halt. States are exact at any time, paused or not.
        """
        self._paused = True
        self._left = self._limit
        self._block = []

    def __next__(self) -> T_co:
        if COMPILER in sys.modules:  # it would look into the block
            return self._next()
        block = self._block
        if block and self._guard.pid == Process.pid:
            try:
                return block.pop()  # type: ignore[no-any-return]
            except IndexError:  # another thread has taken the last one
                pass
        return self._next()

    @untraced
    def _next(self) -> T_co:
        guard = self._guard
        if guard.taker or guard.pid != Process.pid:
            guard.check()
        try:
            with guard.lock:
                guard.taker = get_ident()
                try:
                    return self._advance()
                finally:
                    guard.taker = 0
        except BaseException:
            if guard.taker == get_ident():  # an interrupt has kept it from being cleared
                guard.taker = 0
            hold_at_exit()
            raise

    def _advance(self) -> T_co:
        if self._invalid or self._over or self._paused:
            self._check_valid()
            raise StopIteration
        try:
            item: T_co = self._pull()
        except StopIteration:
            if not self._end():
                raise
            return self._advance()
        except BaseException:
            self._over = True
            self._clock.close()
            raise
        if self._left is not None:
            self._left -= 1
            if not self._left:
                self.pause()
        elif isinstance(self._stream, MergeIterator):
            self._block = self._stream.block
        return item

    def _take_stream(self, numbers: Epoch, stream: NodeIterator[Any]) -> None:
        """From now on, ``stream`` is read. A merge counts its items and times them, a block at a time."""
        self._numbers, self._stream = numbers, stream
        self._block = []
        if isinstance(stream, MergeIterator):
            self._pull, self._clock = stream.items().__next__, stream.clock
        else:
            self._clock = Clock()
            self._pull = partial(_pull_timed, stream.items().__next__, self._clock)

    def _check_valid(self) -> None:
        if self._invalid:
            raise IteratorInvalidated(
                "this iterator has been invalidated by a newer iter(), load_state_dict() or shutdown(): "
                "call iter(loader) again"
            ) from None

    def _end(self) -> bool:
        """The epoch has ended. True if the next one follows at once: the state that was loaded stood at the end."""
        self._check_valid()  # another thread has closed the stream: that is no end of the epoch
        follows = self._resumed and self._loaded_at == self._delivered()
        self._stream.close()
        self._clock.close()
        if follows:
            self._loaded_at = 0
            self._at_end = self._resumed = False
            self._numbers = replace(self._numbers, epoch=self._numbers.epoch + 1)
            self._take_stream(*self._run.begin_next(self._numbers))
        else:
            self._over = self.finished = True
            self._run.observed = self.observe()
            self._run.tell_left_over(left_over_of(self._stream))
        return follows

    def observe(self) -> Observed:
        """What can be told of this epoch in this process. Any thread."""
        return Observed.of(
            self._clock,
            merges_of(self._stream),
            stages_of(self._stream),
            epoch=self._numbers.epoch,
            delivered=self._delivered(),
            before=self._loaded_at,
            finished=self.finished,
            over=self._over or self._invalid,
            left_over=left_over_of(self._stream),
        )

    @property
    def alone(self) -> Run:
        """What can be asked for :meth:`Run.stats` when this iterator and its loader are gone."""
        if not self.finished:
            self._run.observed = self.observe()
            if not self._looked_at:
                self._looked_at = True
                weakref.finalize(self, _see_last, self._run, self._stream, self._clock).atexit = False
        return self._run

    def stats(self) -> FeedStats:
        """How the stage nearest to the loop that runs ahead in this process (``to_device``, ``prefetch``) keeps pace.

        The first of ``loader.stats().stages``. Raises: RuntimeError if there is none. At any time, from any thread.
        """
        for stage in stages_of(self._stream):
            return stage.feed
        raise RuntimeError(
            "nothing runs ahead or moves batches in this process, so there are no stats: they are of to_device(), of "
            "device= of a reading service, and of prefetch()"
        )

    def state(self, asked_by: str = "state_dict()") -> LoaderState:
        """The position after the last item delivered. Raises: RuntimeError, naming ``asked_by``, inside ``next``."""
        return self._guard.read(asked_by, self._state)

    def _state(self) -> LoaderState:
        # Asked first, and not the stream's count: in another thread, a call of next() may begin meanwhile
        finished = isinstance(self._stream, MergeIterator) and self._stream.exhausted
        position = self._stream.state_dict()
        delivered = sum(position["counts"]) if isinstance(self._stream, MergeIterator) else self._delivered()
        return LoaderState.at(self._numbers, delivered, position, finished and delivered > 0)

    def refuse_inside(self, what: str) -> None:
        """Raises: RuntimeError where this thread is in the midst of ``next``, naming ``what`` is asked for."""
        self._guard.read(what, lambda: None)

    def interrupt(self) -> None:
        """Let a ``next`` in another thread return at once, if the stream can."""
        if not self._guard.here:
            self._stream.interrupt()

    def retire(self) -> None:
        """The loader has no more use for this epoch: let go of all. Raises: RuntimeError inside ``next``."""
        self._guard.read("closing the loader", self._close)

    def _close(self) -> None:
        self._invalid = True
        self._block = []
        self._clock.close()
        self._stream.close()

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


def _pull_timed(pull: Callable[[], Any], clock: Clock) -> Any:
    clock.begin_wait()
    item = pull()
    clock.end_wait(1)
    return item
