"""A loader as a trainer sees it: begun late, told its epoch, with a state of what the *trainer* has received.

Runs in the user's process. Trainers call ``iter()`` once too often, before they say which epoch they mean or before
they load a state; they hold a batch that they have not trained on; and at the end of an epoch they do not always load
what they saved. What each of them does is in docs/trainers.md.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar

from torchpipe.data.loader import DataLoader
from torchpipe.errors import StateMismatchError
from torchpipe.integrations._ranks import own_part, own_state, shared, warn_undivided
from torchpipe.loader.dataloader2 import DataLoader2

__all__ = ["AnyLoader", "Counted", "Handed", "LoaderOrMaker"]

T = TypeVar("T")
AnyLoader: TypeAlias = DataLoader[T] | DataLoader2[T]
LoaderOrMaker: TypeAlias = AnyLoader[T] | Callable[[], AnyLoader[T]]


class Handed(Generic[T]):
    """Iterates a loader of torchpipe's, or the one that a function makes when it is first needed.

    A pass begins with its first ``next()``, in the epoch that :meth:`set_epoch` has named by then. ``unused()`` is the
    number of batches that the trainer has taken and not trained on, 0 or 1; a pass whose length is not known, in which
    it may be 1, asks the loader for a state before every batch. ``most()``: the batches with which an epoch of the
    trainer's is over. The state is one for all ranks, made by a collective where that is needed.
    """

    counts_epochs = False  # itself; else the trainer names them

    def __init__(
        self,
        loader: LoaderOrMaker[T],
        *,
        unused: Callable[[], int] | None = None,
        most: Callable[[], float] = lambda: math.inf,
    ) -> None:
        if not isinstance(loader, DataLoader | DataLoader2) and not callable(loader):
            raise TypeError(
                f"a torchpipe.DataLoader, a DataLoader2 or a function that makes one is needed, got {loader!r}: "
                "other loaders have no state that could be saved"
            )
        self._given = loader
        self._made: AnyLoader[T] | None = None
        self._unused_now = unused
        self._most = most
        self._epoch: int | None = None  # that the trainer has named
        self._loaded: dict[str, Any] | None = None  # the state that no batch has been received after
        self._entry: dict[str, Any] | None = None  # where the present pass began
        self._before: dict[str, Any] | None = None  # where it stood before the last batch that was taken
        self._batches: Iterator[T] | None = None  # of the present pass
        self._first = 0  # the batches of the epoch before this pass
        self._taken = 0
        self._ended = False

    @property
    def loader(self) -> AnyLoader[T]:
        """The loader itself, made now if it has not been needed before."""
        if self._made is None:
            made = self._given if isinstance(self._given, DataLoader | DataLoader2) else self._given()
            if not isinstance(made, DataLoader | DataLoader2):
                raise TypeError(f"the function was to make a torchpipe.DataLoader or a DataLoader2, and made {made!r}")
            warn_undivided(made)
            self._made = self._given = made  # the function may hold who holds this
        return self._made

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be of ``epoch``. Raises nothing: a state may still be loaded."""
        self._epoch = epoch

    def __len__(self) -> int:
        """The batches of a whole epoch. Raises: TypeError where that is not known."""
        return len(self.loader)

    def __iter__(self) -> Iterator[T]:
        return self._pass()

    def _pass(self) -> Iterator[T]:
        self._batches = batches = self._begin()
        looks_ahead = self._unused_now is not None and not self.counts
        while True:
            if looks_ahead:
                self._before = self._private_state()
            try:
                batch = next(batches)
            except StopIteration:
                self._ended = True
                if self._loaded is None or self._taken or self._epoch is not None:
                    return
                # A trainer that names no epochs would take the empty rest of one for the end of all data
                self._batches = batches = self._begin()
                continue
            self._taken += 1
            yield batch

    @property
    def sized(self) -> bool:
        """True if the loader has a length."""
        try:
            return len(self.loader) >= 0
        except TypeError:
            return False

    @property
    def counts(self) -> bool:
        """True if the pass at work can say which batch is its last: not with a state of another number of ranks, nor of
        an iterable dataset, whose length is often an estimate.
        """
        estimated = isinstance(self.loader, DataLoader) and self.loader._is_iterable
        return self.sized and not self._first and not estimated

    @property
    def delivered(self) -> int:
        """The number of batches, in the loaded state, of the epoch that the next pass goes on with; 0 at its end."""
        saved = self._loaded
        return 0 if saved is None or self._is_at_end(saved["delivered"]) else int(saved["delivered"])

    def _is_at_end(self, batches: int) -> bool:
        """True if so many batches are a whole epoch, by the loader's length."""
        return self.sized and batches >= len(self.loader)

    @property
    def at_end(self) -> bool:
        """True if the batch that was taken last is the epoch's last one, by the loader's length."""
        return self._first + self._taken >= len(self.loader)

    def _unused(self) -> int:
        return 0 if self._ended or self._before is None or self._unused_now is None else self._unused_now()

    @property
    def at_start(self) -> bool:
        """True if the batch that is trained on is the first one of an epoch that follows on a loaded one."""
        return self._loaded is not None and not self._first and self._taken <= 1 + self._unused()

    @property
    def _in_vain(self) -> bool:
        return not self._ended and self._taken <= self._unused()

    def _leave(self) -> None:
        """The last pass, if there was one, is over, or was begun in vain."""
        if self._entry is not None and self._in_vain:
            self.loader.load_state_dict(self._entry)
        elif self._entry is not None:
            self._find_end()
            self._loaded = None
        self._first, self._taken, self._ended, self._before, self._entry = 0, 0, False, None, None

    def _begin(self) -> Iterator[T]:
        """The batches from here on, of which there may be none."""
        loader = self.loader
        self._leave()
        if self.counts_epochs:
            loader._epochs.tell_of_two_ways()
        self._entry = self._private_state()
        wanted, saved = self._epoch, self._loaded
        epoch, delivered = (0, 0) if saved is None else (saved["epoch"], saved["delivered"])
        if saved is not None and (
            wanted == epoch - 1 if not delivered else wanted == epoch and delivered >= self._most()
        ):  # the trainer asks once more for the epoch that had ended
            return iter(())
        if wanted is None or saved is None or wanted == epoch:
            if wanted is not None:  # of a state's own epoch, too: one of its start says what samplers were told before
                loader.set_epoch(wanted)
            self._first = delivered
            return iter(loader)
        if wanted != epoch + 1 or not delivered:
            raise StateMismatchError(
                f"the trainer begins epoch {wanted}, and the loader's state is of epoch {epoch}, after {delivered} "
                "batches: an epoch would be left out, or trained twice. Lightning leaves one out under max_steps, from "
                "a checkpoint of an epoch's end: resume with max_epochs in the place of max_steps, or from one "
                "that was taken by steps. If these are of two checkpoints, load both from the same one"
            )
        if isinstance(loader, DataLoader):  # its generators go on as in the run that ended this epoch, or gave it up
            rest = iter(loader)
            if self._is_at_end(delivered):
                next(rest, None)
            del rest
        loader.set_epoch(wanted)
        return iter(loader)

    def _find_end(self) -> None:
        """A trainer that counts batches never asks for one more, at which torch's samplers draw once again.

        A resumed run asks, since the end is where its state stands: let every run do so.
        """
        batches, self._batches = self._batches, None
        counted = isinstance(self.loader, DataLoader) and not self._ended
        if counted and batches is not None and self._is_at_end(self._first + self._taken):
            next(batches, None)

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that the trainer has trained on, for all ranks to load.

        On several ranks a collective, unless it is a DataLoader whose state is the same on all: all ranks call it, or
        none.
        """
        state = own_state(self.loader)
        if self._before is not None and self._taken and self._unused():
            state = self._before
        return shared(self.loader, state)

    def _private_state(self) -> dict[str, Any]:
        """The loader's state, for this alone."""
        with self.loader._epochs.beside():
            return own_state(self.loader)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next pass go on from there. Raises: as the loader's ``load_state_dict``."""
        self.loader.load_state_dict(own_part(self.loader, state_dict))
        self._loaded = self._private_state()
        self._epoch = self._entry = self._before = None
        self._taken, self._ended = 0, False

    def restart(self) -> None:
        """A new run, which names its epochs anew; a state that has been loaded stays."""
        self._epoch = None

    def shutdown(self) -> None:
        """End the loader's processes and threads, if it has been made. Idempotent."""
        if self._made is not None:
            self._made.shutdown()


class Counted(Handed[T]):
    """A :class:`Handed` loader that counts its epochs itself, where nobody names them: each pass is the next one."""

    counts_epochs = True
    _last: int | None = None  # the epoch of the last pass, since a state was loaded
    _named: int | None = None
    _passing: weakref.ref[Any]  # the last pass, which somebody may still go on with

    @property
    def epoch(self) -> int:
        """The epoch of the next pass; after a state has been loaded, the one to go on with."""
        if self._named is not None:
            return self._named
        return self.loader.epoch if self._last is None else self._last + 1

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be of ``epoch``, and the state say so if one has been left (``break``). Not needed: passes
        count their epochs.
        """
        self._named = epoch
        if self._entry is not None and not self._in_vain and (self._ended or self._passing() is None):
            self._leave()
            self.loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[T]:
        self._epoch = self._last = self.epoch
        self._named = None
        batches = self._pass()
        self._passing = weakref.ref(batches)
        return batches

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._last = self._named = None
