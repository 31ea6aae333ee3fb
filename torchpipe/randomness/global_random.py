"""The global random states of ``random``, numpy and torch, kept apart for each shard.

Runs in every process that executes a shard.

User functions draw from the global generators. For their draws to be a function of (seed, epoch, shard) alone, a shard
owns a set of global states, seeded from those three; it is put in place while the shard runs and taken out again,
so the user's own global states are never touched.

Only the main thread, and a thread that makes a loader, may have them changed over: what other threads draw meanwhile
would come from the wrong set, and come again. In another thread (a home-made prefetcher's) everything draws from the
process's own states, as it does with torch's loader, and a warning says so once.

numpy makes legacy normal numbers (``np.random.randn``) in pairs, and keeps the second of a pair beside the bit
generator; changing the generator drops it. It belongs to the state: it is carried along.
"""

from __future__ import annotations

import copy
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.random import get_bit_generator, set_bit_generator  # type: ignore[attr-defined]

from torchpipe.compat.numpy_private import put_second_normal, second_normal
from torchpipe.errors import StateError
from torchpipe.randomness.seeds import BatchSeeds, StreamKey, derive_seed

__all__ = ["BatchRandom", "GlobalRandom", "may_change_states", "own_random_states", "own_states_in_place"]

T = TypeVar("T")

_WORDS = 624  # of 4 bytes, of each Mersenne twister
_PURPOSE = 0x9E3779B9  # keeps these seeds apart from those of nodes


@dataclass
class _NumpyState:
    """A generator's state in place of the generator, which takes longer to make."""

    state: Any


def _put(python: Any, numpy: Any, normal: float | None, of_torch: torch.Tensor) -> None:
    """Put states in place."""
    random.setstate(python)
    set_bit_generator(numpy)
    if normal is not None:
        put_second_normal(normal)
    torch.default_generator.set_state(of_torch)


class _Thread(threading.local):
    owns_states = False


_thread = _Thread()
_told: list[bool] = []  # once it was told that a thread draws from the process's states


def own_random_states() -> None:
    """This thread makes a loader: the process's random states may be changed over while it takes from that."""
    _thread.owns_states = True


def may_change_states() -> bool:
    """May the process's random states be changed over in this thread?"""
    return _thread.owns_states or threading.current_thread() is threading.main_thread()


def _drawing(step: Callable[[], T]) -> T:
    """What ``step`` returns, under the states that are in place. Warns, once, if it has drawn from them."""
    if _told:
        return step()
    before = _in_place()
    result = step()
    if _in_place() != before and not _told:
        _told.append(True)
        warnings.warn(
            f"thread {threading.current_thread().name!r} takes from a loader that another thread has made. While it "
            "makes items, random numbers are drawn from the process's generators (random, numpy or torch), which other "
            "threads draw from as well: these items are not reproducible. Give the loader workers (num_workers=1), "
            "which have generators of their own, or draw from a generator of your own",
            UserWarning,
            stacklevel=4,
        )
    return result


def _in_place() -> tuple[Any, ...]:
    numpy = get_bit_generator().state["state"]
    words = tuple(value.tobytes() if isinstance(value, np.ndarray) else value for value in numpy.values())
    return random.getstate(), words, torch.get_rng_state().numpy().tobytes()


def _states_now() -> tuple[Any, Any, float | None, torch.Tensor]:
    return random.getstate(), get_bit_generator(), second_normal(), torch.default_generator.get_state()


_guests: list[_Guest] = []  # whose states are in place of the process's own, the first of them first


@contextmanager
def own_states_in_place() -> Iterator[None]:
    """The process's own random states are in place meanwhile, also in the midst of what is made under others: for a
    signal handler that asks for a state there."""
    outside = next((guest._outside for guest in _guests if guest._outside is not None), None)
    if outside is None or not may_change_states():
        yield
        return
    inside = _states_now()
    _put(*outside)
    try:
        yield
    finally:
        _put(*inside)


class _Guest:
    """What puts global random states in place of the process's own, and these back."""

    _outside: tuple[Any, Any, float | None, torch.Tensor] | None = None

    def _save_outside(self) -> None:
        self._outside = _states_now()
        _guests.append(self)

    def _put_back(self) -> None:
        """Restore the process's states. Idempotent, and to be called again if it is interrupted."""
        outside = self._outside
        if outside is not None:
            try:
                _put(*outside)
            except BaseException:  # an interrupt, say: now whole
                _put(*outside)
                raise
            finally:
                self._outside = None
                _guests[:] = [guest for guest in _guests if guest is not self]


class BatchRandom(_Guest):
    """Global random states that begin anew for each batch, from (seed, epoch, batch), wherever the batch is made."""

    def __init__(self) -> None:
        self._numpy = np.random.MT19937(0)
        self._seeds = BatchSeeds()

    def seed(self, seed: int, epoch: int, batch: int) -> None:
        """Put a batch's states in place for good: in processes whose own they are."""
        for_python, for_numpy, for_torch = self._seeds.of(seed, epoch, batch)
        random.seed(for_python)
        set_bit_generator(self._numpy)
        np.random.seed(for_numpy)
        torch.default_generator.manual_seed(for_torch)

    def within(self, seed: int, epoch: int, batch: int, step: Callable[[], T]) -> T:
        """What ``step`` returns, under a batch's states: an interrupt at any instruction leaves the process its own."""
        if not may_change_states():
            return _drawing(step)
        try:
            self._save_outside()
            self.seed(seed, epoch, batch)
            result = step()
            self._put_back()
            return result
        except BaseException:
            self._put_back()
            raise


class GlobalRandom(_Guest):
    """One set of global random states. ``enter`` puts it in place, ``leave`` takes it out; not reentrant.

    An interrupt between the two, or in the midst of them, costs this set, and not the process's states: these are put
    back by ``leave``, which does nothing where nothing is to be done. Whoever must not lose them calls it again.

    State: ``None`` while nothing was drawn since seeding, else plain data (about 10 KB). ``state_dict`` raises
    StateError if a user's function has replaced numpy's global bit generator by one of another kind.
    """

    def __init__(self, key: StreamKey) -> None:
        self._key: StreamKey | None = key
        self._initial: dict[str, Any] | None = None  # made when it is asked for: it takes half as long as all the rest
        seed = derive_seed(*key, _PURPOSE)
        self._numpy: Any = np.random.MT19937(seed)
        self._normal: float | None = None
        self._python = random.Random(seed).getstate()
        self._torch = torch.Generator().manual_seed(seed).get_state()

    @classmethod
    def present(cls) -> GlobalRandom:
        """A copy of the states that are in place now."""
        copied = object.__new__(cls)
        copied._key, copied._initial = None, {}
        copied._capture()
        # the process goes on with its own generator
        standard = isinstance(copied._numpy, np.random.MT19937)
        copied._numpy = _NumpyState(copied._numpy.state) if standard else copy.deepcopy(copied._numpy)
        return copied

    @classmethod
    def of(cls, state: dict[str, Any]) -> GlobalRandom:
        """The set that :meth:`to_dict` described. Raises: as :meth:`load_state_dict`."""
        made = cls((0,))
        made.load_state_dict(state)
        return made

    def enter(self) -> None:
        """Save the process's states and put this set in place, if this thread may."""
        if not may_change_states():
            return
        self._save_outside()
        try:
            self._install()
        except BaseException:
            self._put_back()
            raise

    def leave(self) -> None:
        """Keep what this set has become and restore the process's states. Idempotent."""
        if self.entered:
            try:
                self._capture()
            finally:
                self._put_back()

    def restore(self) -> None:
        """Put this set, a copy made by :meth:`present`, in place for good; again and again, if need be."""
        numpy = copy.deepcopy(self._numpy)
        if isinstance(numpy, _NumpyState):
            state, numpy = numpy.state, np.random.MT19937()
            numpy.state = state
        _put(self._python, numpy, self._normal, self._torch)

    def installed(self) -> Self:
        """For ``with``: in place meanwhile."""
        return self

    def within(self, step: Callable[[], T]) -> T:
        """What ``step`` returns, with this set in place: an interrupt at any instruction leaves the process its own.

        ``with`` does not do that: an interrupt may come before the first instruction of ``__exit__``.
        """
        if not may_change_states():
            return _drawing(step)
        try:
            with self:
                return step()
        except BaseException:
            self.leave()
            raise

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    @property
    def of_torch(self) -> torch.Tensor:
        """The state of torch's generator in this set."""
        return self._torch

    @property
    def entered(self) -> bool:
        return self._outside is not None

    def _install(self) -> None:
        if isinstance(self._numpy, _NumpyState):
            state, self._numpy = self._numpy.state, np.random.MT19937()
            self._numpy.state = state
        _put(self._python, self._numpy, self._normal, self._torch)

    def _capture(self) -> None:
        self._python = random.getstate()
        self._torch = torch.default_generator.get_state()
        self._numpy = get_bit_generator()
        self._normal = second_normal()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for :meth:`of`. Raises: StateError, as ``state_dict``."""
        version, words, gauss = self._python
        numpy = self._numpy.state
        if numpy["bit_generator"] != "MT19937":
            raise StateError(
                f"numpy's global bit generator is {numpy['bit_generator']}, and only the state of the standard MT19937 "
                "can be saved. Draw from a generator of your own instead, as random_map() gives it"
            )
        return {
            "python": [version, np.asarray(words, dtype=np.uint32).tobytes(), gauss],
            "numpy": [numpy["state"]["key"].tobytes(), int(numpy["state"]["pos"]), self._normal],
            "torch": self._torch.numpy().tobytes(),
        }

    def _beginning(self) -> dict[str, Any]:
        """What :meth:`to_dict` gives before anything is drawn; of a copy made by :meth:`present`, nothing."""
        if self._initial is None:
            assert self._key is not None
            self._initial = GlobalRandom(self._key).to_dict()
        return self._initial

    def state_dict(self) -> dict[str, Any] | None:
        if self.entered:
            self._capture()
        packed = self.to_dict()
        return None if packed == self._beginning() else packed

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Raises: ValueError, TypeError and the like for what is no such state; nothing has changed then."""
        state = self._beginning() if state is None else state
        version, words, gauss = state["python"]
        python = (version, tuple(np.frombuffer(words, dtype=np.uint32).tolist()), gauss)
        random.Random().setstate(python)  # complains of all that would fail when it is put in place
        key, pos, normal = state["numpy"]
        if type(pos) is not int or not 0 <= pos <= _WORDS or len(key) != 4 * _WORDS:  # numpy does not check it
            raise ValueError(f"numpy's generator cannot stand at word {pos!r:.40} of {len(key) // 4}")
        if not all(number is None or type(number) is float for number in (gauss, normal)):
            raise TypeError("a normal number held ready that is no float")
        numpy = np.random.MT19937()
        numpy.state = {"bit_generator": "MT19937", "state": {"key": np.frombuffer(key, dtype=np.uint32), "pos": pos}}
        if type(state["torch"]) is not bytes:  # of a number, bytearray() would make as many bytes
            raise TypeError("torch's generator has a state of bytes")
        of_torch = torch.frombuffer(bytearray(state["torch"]), dtype=torch.uint8)
        torch.Generator().set_state(of_torch)
        self._python, self._numpy, self._normal, self._torch = python, numpy, normal, of_torch
        if self.entered:
            self._install()
