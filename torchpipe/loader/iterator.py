"""What ``iter(loader)`` returns: one epoch, item by item, and its position.

Runs in the user's process.

Where the stream is that of a merge, as it is without nodes in the main section, ``next`` pulls from it directly: the
merge keeps the position and its own lock, so that nothing has to be done for each item; it is a generator, which
refuses a second thread by itself. Otherwise, with a limit, and on a free-threaded Python, whose generators refuse
nobody, ``next`` goes through a guard that lets one call at a time in.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from torchpipe.ahead.at_exit import hold_at_exit
from torchpipe.compat.torch_private import COMPILER
from torchpipe.errors import IteratorInvalidated, StateError
from torchpipe.execution.merge import MergeIterator
from torchpipe.loader.interrupts import raise_what_struck
from torchpipe.loader.observing import Observed, left_over_of, merges_of, stages_of
from torchpipe.loader.single_consumer import OneUser, has_interpreter_lock, refuse_pickling
from torchpipe.loader.state import LoaderState
from torchpipe.loader.untraced import without_tracing
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_count
from torchpipe.stats import FeedStats
from torchpipe.stats.clock import Clock

if TYPE_CHECKING:
    from torchpipe.loader.dataloader2 import DataLoader2

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

    def __init__(self, loader: DataLoader2[Any], seed: int, epoch: int, loaded: LoaderState | None) -> None:
        self._epoch = epoch
        self.finished = False
        self._guard = OneUser("loader's iterator")
        self._paused = False
        self._limit: int | None = None
        self._left: int | None = None  # items until the next pause
        self._over = self._invalid = False
        # The loader has its iterator, and not the other way round: threads and workers end when both are dropped,
        # without waiting for the collector.
        self._loader_itself = weakref.ref(loader)
        self._spare = loader._without_iterator()
        self._loaded_at = self._counted = 0 if loaded is None else loaded.delivered
        self._resumed = loaded is not None and loaded.has_begun
        self._looked_at = False
        self._at_end = loaded is not None and loader._at_end(loaded)  # as the length says: to be seen
        self._seed, self._stream = loader._begin(seed, epoch, loaded)
        if isinstance(self._stream, MergeIterator) and self._stream.delivered != self._loaded_at:
            self._stream.close()
            raise StateError(
                f"the state is damaged: it says that {self._loaded_at} items were delivered, and its position stands "
                f"after {self._stream.delivered}. Use an older checkpoint"
            )
        self._direct = False
        self._choose_pull()
        self._clock = self._stream.clock if isinstance(self._stream, MergeIterator) else Clock()
        _alive.add(self)

    @property
    def _loader(self) -> DataLoader2[Any]:
        loader = self._loader_itself()
        return self._spare if loader is None else loader

    @property
    def epoch(self) -> int:
        """The epoch that the next item is of: after a state of the end of one, where that is known, the next one."""
        return self._epoch + self._before_next_epoch()

    @property
    def delivered(self) -> int:
        """The number of items of the epoch that have been handed out, those before a restore included."""
        return 0 if self._before_next_epoch() else self._delivered()

    def _before_next_epoch(self) -> bool:
        return self._at_end and self._delivered() == self._loaded_at

    def _delivered(self) -> int:
        return self._stream.delivered if isinstance(self._stream, MergeIterator) else self._counted

    @property
    def paused(self) -> bool:
        return self._paused

    def _choose_pull(self) -> None:
        """The shortest way to the next item that does all that has to be done."""
        plain = isinstance(self._stream, MergeIterator) and self._limit is None and has_interpreter_lock()
        self._direct = plain and not (self._paused or self._over or self._invalid)
        self.__dict__.pop("_pull", None)  # a bound method of its own would keep this object alive
        if self._direct:
            self.__dict__["_pull"] = self._stream.items().__next__

    def __iter__(self) -> Self:
        return self

    def limit(self, num_batches: int | None) -> None:
        """Pause after each ``num_batches`` items, counted from now; None: no more pauses.

        The limit stays over pauses: every :meth:`resume` gives that many items more. It ends no pause by itself. An
        epoch that ends just after the last item allowed is found finished by the first ``next`` after ``resume``.

        Raises: TypeError or ValueError unless it is None or at least 1.
        """
        self._limit = self._left = None if num_batches is None else check_count("num_batches", num_batches, at_least=1)
        self._choose_pull()

    def resume(self) -> None:
        """End a pause; without one, nothing happens."""
        self._paused = False
        self._choose_pull()

    def pause(self) -> None:
        """Let ``next`` raise StopIteration until :meth:`resume`.

        Processes and threads stay, and fill what they may run ahead (``worker_prefetch_cnt`` and so on) but no more:
        there is nothing to halt. States are exact at any time, paused or not.
        """
        self._paused = True
        self._left = self._limit
        self._choose_pull()

    def __next__(self) -> T_co:
        if COMPILER in sys.modules:
            return without_tracing(_next_of, self)  # type: ignore[no-any-return]
        try:
            return self._pull()
        except BaseException as error:
            if not self._goes_on(error):
                raise
        return self.__next__()

    def _goes_on(self, error: BaseException) -> bool:
        """The stream has raised ``error``. True if it was the end of an epoch, and another one follows.

        Raises: RuntimeError if ``next`` is under way already; what a handler has raised within a wait.
        """
        hold_at_exit()
        # What comes out of a generator has its frame in the traceback; without one, it was not even entered. Asked
        # first: the call that is under way in another thread may end the epoch meanwhile, which is direct no more then.
        if isinstance(error, ValueError) and error.__traceback__ is not None and error.__traceback__.tb_next is None:
            raise self._guard.refusal(inside=self._stream_runs_in() == threading.get_ident()) from None
        if not self._direct:
            raise_what_struck(error)
            return False
        if isinstance(error, StopIteration):
            return self._end()
        self._over = True
        self._clock.close()
        self._choose_pull()
        raise_what_struck(error)
        return False

    def _pull(self) -> T_co:
        return self._guard.advance(self._advance)

    def _advance(self) -> T_co:
        self._check_valid()
        if self._over or self._paused:
            raise StopIteration
        try:
            item = self._timed_next()
        except StopIteration:
            if not self._end():
                raise
            return self._advance()
        except BaseException:
            self._over = True
            self._clock.close()
            raise
        self._counted += 1
        if self._left is not None:
            self._left -= 1
            if not self._left:
                self.pause()
        return item

    def _check_valid(self) -> None:
        if self._invalid:
            raise IteratorInvalidated(
                "this iterator has been invalidated by a newer iter(), load_state_dict() or shutdown(): "
                "call iter(loader) again"
            ) from None

    def _timed_next(self) -> T_co:
        """The next item. A merge has the clock itself, and looks at it a block of items at a time."""
        if isinstance(self._stream, MergeIterator):
            return next(self._stream)  # type: ignore[no-any-return]
        self._clock.begin_wait()
        item: T_co = next(self._stream)
        self._clock.end_wait(1)
        return item

    def _end(self) -> bool:
        """The epoch has ended. True if the next one follows at once: the state that was loaded stood at the end."""
        self._check_valid()  # another thread has closed the stream: that is no end of the epoch
        follows = self._resumed and self._loaded_at == self._delivered()
        self._stream.close()
        self._clock.close()
        if follows:
            self._epoch += 1
            self._counted = self._loaded_at = 0
            self._at_end = self._resumed = False
            self._seed, self._stream = self._loader._begin_next(self._seed, self._epoch)
            self._clock = self._stream.clock if isinstance(self._stream, MergeIterator) else Clock()
        else:
            self._over = self.finished = True
            self._spare.see(self.observe())
        self._choose_pull()
        if not follows:
            self._loader.tell_left_over(left_over_of(self._stream))
        return follows

    def observe(self) -> Observed:
        """What can be told of this epoch in this process. Any thread."""
        return Observed.of(
            self._clock,
            merges_of(self._stream),
            stages_of(self._stream),
            epoch=self._epoch,
            delivered=self._delivered(),
            before=self._loaded_at,
            finished=self.finished,
            over=self._over or self._invalid,
            left_over=left_over_of(self._stream),
        )

    @property
    def alone(self) -> DataLoader2[Any]:
        """The loader as this iterator knows it, without a reference to either: what a watch asks if these are gone."""
        if not self.finished:
            self._spare.see(self.observe())
            if not self._looked_at:
                self._looked_at = True
                weakref.finalize(self, _see_last, self._spare, self._stream, self._clock).atexit = False
        return self._spare

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
        """The position after the last item delivered. Raises: as :meth:`_between_items`, naming ``asked_by``."""
        return self._between_items(asked_by, self._state)

    def _state(self) -> LoaderState:
        # Asked first, and not the stream's count: in another thread, a call of next() may begin meanwhile
        finished = isinstance(self._stream, MergeIterator) and self._stream.exhausted
        position = self._stream.state_dict()
        delivered = sum(position["counts"]) if isinstance(self._stream, MergeIterator) else self._counted
        return self._loader._state_at(self._seed, self._epoch, delivered, position, finished and delivered > 0)

    def _between_items(self, what: str, step: Callable[[], R]) -> R:
        """Run ``step`` between two calls of ``next``. Raises: RuntimeError inside one, and in a forked child."""
        if self._stream_runs_in() == threading.get_ident():
            raise self._guard.refusal_inside(what)
        return self._guard.read(what, step)

    def _stream_runs_in(self) -> int:
        return self._stream.running if self._direct and isinstance(self._stream, MergeIterator) else 0

    def _refuse_inside(self, what: str) -> None:
        """Raises: RuntimeError where this thread is in the midst of ``next``, naming ``what`` is asked for."""
        self._between_items(what, lambda: None)

    def _retire(self) -> None:
        """The loader has no more use for this epoch, of which no ``next`` is under way: let go of all."""
        self._between_items("closing the loader", self._close)

    def _interrupt(self) -> None:
        """Let a ``next`` in another thread return at once, if the stream can."""
        if not self._guard.here or self._stream_runs_in() not in (0, threading.get_ident()):
            self._stream.interrupt()

    def _close(self) -> None:
        self._invalid = True
        self._clock.close()
        try:
            self._stream.close()
        finally:
            self._choose_pull()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_pickling(self)


def _see_last(spare: DataLoader2[Any], stream: NodeIterator[Any], clock: Clock) -> None:
    """An iterator has been dropped in mid-epoch: tell ``spare`` what it came to."""
    seen = spare.seen
    if seen is None or seen.state != "running":
        return
    taken = (
        stream.delivered if isinstance(stream, MergeIterator) else seen.delivered - seen.consumer.items + clock.items
    )
    consumer = clock.consumer(taken - (seen.delivered - seen.consumer.items))
    spare.see(replace(seen, delivered=taken, consumer=consumer, timeline=clock.timeline(), state="closed"))


_alive: weakref.WeakSet[DataLoader2Iterator[Any]] = weakref.WeakSet()


def _refuse_in_child() -> None:
    """In a forked child, let ``next`` go through the guard, which knows that all belongs to the parent."""
    for iterator in list(_alive):
        iterator._direct = False
        iterator.__dict__.pop("_pull", None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_refuse_in_child)


def _next_of(iterator: DataLoader2Iterator[Any]) -> Any:
    """As ``__next__``, where that may be traced."""
    try:
        return iterator._pull()
    except BaseException as error:
        if not iterator._goes_on(error):
            raise
    return _next_of(iterator)
