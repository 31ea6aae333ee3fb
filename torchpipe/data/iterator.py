"""The iterator of a ``DataLoader``: one epoch, from its start or from a loaded position. Runs in the user's process."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

import torch

from torchpipe.compat.torch_private import profiler_runs, reported_length
from torchpipe.data.batches import Batches, DeviceStage, stage_of
from torchpipe.data.fetch import Failure
from torchpipe.data.position import Position, handed_out
from torchpipe.data.processes import torch_words
from torchpipe.errors import WorkerDiedError, raise_error_of
from torchpipe.execution.figures import ServiceFigures
from torchpipe.loader.observing import Observed
from torchpipe.loader.single_consumer import OneUser, check_process, refusal, refuse_pickling
from torchpipe.loader.untraced import untraced
from torchpipe.state import Cursor

if TYPE_CHECKING:
    from torchpipe.data.loader import DataLoader
    from torchpipe.data.order.sampling import Order

__all__ = ["DataLoaderIterator"]

T_co = TypeVar("T_co", covariant=True)

_PROFILE = "enumerate(DataLoader)#DataLoaderIterator.__next__"
_YIELD_S = 5.0


class DataLoaderIterator(Iterator[T_co], Generic[T_co]):
    """Yields batches. After an exception of a map-style dataset, the next batches follow.

    One thread takes batches; another one may end the epoch meanwhile (``loader.shutdown()``, ``load_state_dict()``),
    and the first is then told. The guard's lock is held while a batch is taken and while the epoch is ended, so that
    neither finds the other's work half done. Unless it ``makes`` batches, it only passes over them.
    """

    def __init__(self, loader: DataLoader[T_co], epoch: int, saved: Position | None, *, makes: bool = True) -> None:
        self._loader = loader
        self._guard = OneUser("loader's iterator")
        self._invalid = False
        self.finished = False
        self._over = False  # nothing more comes of it, though the epoch may not have ended
        self._closed = False  # an interrupt may keep it from being so once it is over
        self._stage: DeviceStage | None = None
        self._processes: list[Any] = []  # those that have ended with it
        stage = stage_of(loader) if makes else None
        self._errors = 0  # that the loop has had in the place of batches
        self._order: Order | None = None
        self._batches: Batches
        self._source: Batches  # from which they are handed out: those that are made, or the device stage
        self.epoch = epoch
        order, batches = loader._begin(epoch, saved, makes=makes)
        yielded = handed_out(batches.number, None if saved is None else saved.batches)  # in this epoch
        # No calls, which a Ctrl-C could strike: what has batches has all that it takes to be closed
        self._num_yielded, self._began_at = yielded, yielded
        self._order, self._batches, self._source = order, batches, batches
        try:
            if stage is not None:
                self._source = self._stage = DeviceStage(*stage, batches)
        except BaseException:
            self._over = True
            self._release()
            raise

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._loader._index_sampler)

    def __next__(self) -> T_co:
        while True:
            hand = self._ready()
            try:
                batch: T_co = hand[-1]
                del hand[-1]  # it counts from here on; no call follows, at which a signal's handler could raise
            except IndexError:  # another thread has taken it, or has ended the epoch
                continue
            self._num_yielded += 1
            return batch

    @untraced
    def _ready(self) -> list[Any]:
        """Batches that are there, the next one last. Whoever deletes it has been handed it. Raises: as ``next``."""
        if profiler_runs():
            with torch.autograd.profiler.record_function(_PROFILE):
                return self._guard.take(self._advance)
        return self._guard.take(self._advance)

    @untraced
    def skip(self, count: int) -> int:
        """Pass over the next ``count`` batches, or what is left of the epoch: how many that was."""
        if self.finished:
            return 0
        return self._guard.take(partial(self._pass_over, count))

    def _advance(self) -> list[Any]:
        hand: list[Any] = self._ending(self._source.ready)
        if self._order is not None and self._order.keeps_positions:
            self._order.forget_before(self.delivered)
        if isinstance(hand[-1], Failure):
            self._errors += 1
            raise_error_of(hand[-1])
        if self._loader._is_iterable:
            self._warn_of_length()
        return hand

    def _pass_over(self, count: int) -> int:
        passed: int = self._ending(partial(self._source.pass_over, count))
        self._num_yielded += passed
        return passed

    def _ending(self, take: Callable[[], Any]) -> Any:
        """The result of ``take``; an error that it raises ends this."""
        if not self.goes_on:
            self._refuse()
        try:
            return take()
        except StopIteration:
            self.settle()  # before it counts as finished: an interrupt may come in between
            self.finished = True
            self._close(invalid=False, parks=True)
            raise
        except WorkerDiedError as error:
            self._close(invalid=False, parks=True, failed=True)
            if self._loader.on_worker_death != "raise":
                raise
            raise torch_words(error) from error
        except BaseException:  # the sampler's, of what ends a worker, or Ctrl-C anywhere: nothing can follow
            self._close(invalid=False, parks=True, failed=True)
            raise

    def _refuse(self) -> NoReturn:
        if not self.finished:
            raise refusal(self.epoch, superseded=self._invalid)
        raise StopIteration

    @property
    def goes_on(self) -> bool:
        """True if another batch may follow: an exception of a sample does not end the epoch."""
        return not (self._over or self._invalid)

    @property
    def delivered(self) -> int:
        """The number of the first batch that is not past: out of order, some behind it may be."""
        return self._source.number

    @property
    def had(self) -> int:
        """The number of batches that the loop has had; above one if an error has come, after which it was no look."""
        return self._num_yielded - self._began_at + 2 * self._errors

    @property
    def lock(self) -> threading.RLock:
        """Who holds it knows that no other thread takes a batch, or ends the epoch."""
        return self._guard.lock

    def position(self) -> Position:
        """After the last batch that was handed out."""
        delivered, batches = self._number_and_position()
        order, now = (None, None) if self._order is None else self._order.state(delivered)
        return Position(epoch=self.epoch, delivered=delivered, order=order, batches=batches, now=now)

    def exact(self, position: Position) -> Position:
        """The same position, such that a resume makes no batch again. Raises: StateError."""
        return replace(position, batches=self._batches.exact(position.batches or {}))

    def last_position(self) -> Any:
        """The position of the sampler, if it has a state of its own and the epoch has ended."""
        return self._order.last_position() if self.finished and self._order is not None else None

    def lanes(self) -> list[Cursor] | None:
        """The cursors of datasets, if they keep anything and the next epoch begins there: of workers that persist, and
        of an iterable one in this process.
        """
        position = self._batches.position() if self.finished else self._number_and_position()[1]
        if self._loader._is_iterable:
            return self._batches.between(position)
        lanes = position.get("lanes") if self._loader._samplers.keeps_seed else None
        cursors = [] if lanes is None else [Cursor.from_state(item) for item in lanes]
        found = [Cursor(cursor.snapshot, 0, 0) for cursor in cursors if cursor is not None and not cursor.skip]
        return found if found and len(found) == len(cursors) else None

    def _number_and_position(self) -> tuple[int, dict[str, Any]]:
        """Both of one moment, though another thread may take batches meanwhile."""
        source = self._source
        while True:
            number = source.number
            position = source.position()
            if source.number == number:
                return number, position

    def _warn_of_length(self) -> None:
        loader = self._loader
        length = reported_length(loader)
        if length is None or self._num_yielded < length:
            return
        text = (
            f"Length of IterableDataset {loader.dataset} was reported to be {length}"
            f"(when accessing len(dataloader)), but {self._num_yielded + 1} samples have been fetched. "
        )
        if loader.num_workers > 0:
            text += (
                "For multiprocessing data-loading, this could be caused by not properly configuring the "
                "IterableDataset replica at each worker. Please see "
                "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
            )
        warnings.warn(text, stacklevel=6)

    @property
    def _workers(self) -> list[Any]:
        """The worker processes, under the name that tools know; of an iterator that is over, those that it had."""
        return self._batches.processes or self._processes

    def _shutdown_workers(self) -> None:
        self.close()
        self._loader._end_workers()

    def observe(self) -> tuple[Observed, ServiceFigures]:
        """The figures of this epoch. Any thread. Raises: RuntimeError in a forked child."""
        check_process(self._guard.pid, "loader")
        observed = Observed.of(
            self._source.clock,
            self._batches.merges(),
            () if self._stage is None else (self._stage.stats(),),
            epoch=self.epoch,
            delivered=self._num_yielded,
            before=self._began_at,
            finished=self.finished,
            over=self._over or self._invalid,
        )
        return observed, self._batches.figures()

    def _release(self) -> None:
        self._source.clock.close()
        self._loader._observed = self.observe()
        if self._stage is not None:
            self._stage.close()
        self._processes = self._batches.processes
        self._batches.close()
        self._loader._release(self._batches)

    def close(self) -> None:
        """End this epoch; its position stays the loader's. Idempotent. Raises: RuntimeError inside ``next``."""
        self._check_outside()
        self._close(invalid=False, parks=True)

    def supersede(self) -> None:
        """Close it, as :meth:`close`; a loop that goes on with it in mid-epoch is told, instead of an early end."""
        self._check_outside()
        self._close(invalid=True, parks=True)

    def settle(self) -> None:
        """The loader's next epoch is about to begin: this one ends here, as far as it is concerned."""
        if self._order is not None:
            self._order.settle(self.delivered)

    def give_up(self) -> None:
        """Settle, as :meth:`settle`; if the epoch has not ended, the generators go back to what was asked for. With
        torch's seeding, where the number of workers is fixed anyhow, they stay where torch's loader leaves them.
        """
        if self._order is not None and not self.finished and self._loader.worker_seeding == "batch":
            with suppress(Exception):  # a sampler that cannot be run again is left as it is
                self._order.rewind(handed_out(*self._number_and_position()) + self._source.has_raised)
        self.settle()

    def _invalidate(self) -> None:
        """Close it, as :meth:`supersede`; the position is nobody's."""
        self._check_outside()
        self._close(invalid=True, parks=False)

    def _check_outside(self) -> None:
        """A signal handler that ended the epoch now would leave ``next``, which goes on, with what is closed."""
        if self._guard.taker == threading.get_ident():
            raise self._guard.refusal_inside("closing the loader")

    def _close(self, *, invalid: bool, parks: bool, failed: bool = False) -> None:
        closed = self._closed  # which another thread may change before the lock is had
        if closed or self._guard.pid != os.getpid():
            return
        with self._with_guard():
            if self._closed:
                return
            parks = parks and not self._invalid
            # Before it is over: who asks for a batch meanwhile is told, and finds no early end
            self._invalid |= invalid
            self._over = True
            if parks:
                self._loader._left(self, failed=failed)
            self._release()
            self._closed = True

    @contextmanager
    def _with_guard(self) -> Iterator[None]:
        """Nobody takes a batch meanwhile. Who waits for one in another thread is interrupted, and 5 s are waited for
        that thread to notice: it may be inside the user's code, from where it comes back to an epoch that is over.
        """
        held = self._guard.lock.acquire(blocking=False)
        if not held:
            self._source.interrupt()
            held = self._guard.lock.acquire(timeout=_YIELD_S)
        try:
            yield
        finally:
            if held:
                self._guard.lock.release()

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At exit, the pool of workers ends itself, and modules' globals are None
        if not _is_finalizing() and hasattr(self, "_batches"):
            self._forgotten()

    @untraced
    def _forgotten(self) -> None:
        self._close(invalid=False, parks=True)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_pickling(
            self, "save loader.state_dict(), and load it into a loader that is made from the same arguments"
        )
