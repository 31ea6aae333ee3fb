"""The global random states of ``random``, numpy and torch, kept apart for each shard.

Runs in every process that executes a shard.

User functions draw from the global generators. For their draws to be a function of (seed, epoch, shard) alone, a shard
owns a set of global states, seeded from those three; it is put in place while the shard runs and taken out again,
so the user's own global states are never touched.

One thread of a process may have them changed over: the main thread, or the one that has called
:func:`own_random_states`. What others draw meanwhile would come from the wrong set, and come again. In any other thread
everything draws from the process's own states, as it does with torch's loader, and a warning says so once.
"""

from __future__ import annotations

import os
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.random import get_bit_generator  # type: ignore[attr-defined]

from torchpipe.errors import StateError
from torchpipe.randomness import generators
from torchpipe.randomness.seeds import BatchSeeds, StreamKey, derive_seed

__all__ = [
    "BatchRandom",
    "GlobalRandom",
    "Own",
    "RandomStates",
    "may_change_states",
    "own_random_states",
    "own_states_in_place",
]

T = TypeVar("T")

_WORDS = 624  # of 4 bytes, of each Mersenne twister
_PURPOSE = 0x9E3779B9  # keeps these seeds apart from those of nodes


@dataclass(frozen=True)
class RandomStates:
    """The global random states of one moment, whoever's they are: of ``random``, numpy and torch."""

    python: Any
    numpy: dict[str, Any]  # with the normal number that numpy holds ready
    of_torch: torch.Tensor

    @classmethod
    def now(cls) -> RandomStates:
        """The states that are in place. Costs about 50 us."""
        return cls(random.getstate(), generators.state_in_place(), torch.default_generator.get_state())

    def put(self) -> None:
        """Put them in place for good."""
        random.setstate(self.python)
        generators.put_state(self.numpy)
        torch.default_generator.set_state(self.of_torch)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, about 10 KB. Raises: StateError if numpy's bit generator is not of the standard kind."""
        numpy = self.numpy
        if numpy["bit_generator"] != "MT19937":
            raise StateError(
                f"numpy's global bit generator is {numpy['bit_generator']}, and only the state of the standard MT19937 "
                "can be saved. Draw from a generator of your own instead, as random_map() gives it"
            )
        version, words, gauss = self.python
        normal = float(numpy["gauss"]) if numpy["has_gauss"] else None
        return {
            "python": [version, np.asarray(words, dtype=np.uint32).tobytes(), gauss],
            "numpy": [numpy["state"]["key"].tobytes(), int(numpy["state"]["pos"]), normal],
            "torch": self.of_torch.numpy().tobytes(),
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> RandomStates:
        """The states that :meth:`to_dict` described. Raises: ValueError, TypeError and the like for anything else."""
        version, words, gauss = state["python"]
        python = (version, tuple(np.frombuffer(words, dtype=np.uint32).tolist()), gauss)
        random.Random().setstate(python)  # complains of all that would fail when it is put in place
        key, pos, normal = state["numpy"]
        if type(pos) is not int or not 0 <= pos <= _WORDS or len(key) != 4 * _WORDS:  # numpy does not check it
            raise ValueError(f"numpy's generator cannot stand at word {pos!r:.40} of {len(key) // 4}")
        if not all(number is None or type(number) is float for number in (gauss, normal)):
            raise TypeError("a normal number held ready that is no float")
        numpy = {
            "bit_generator": "MT19937",
            "state": {"key": np.frombuffer(key, dtype=np.uint32), "pos": pos},
            "has_gauss": int(normal is not None),
            "gauss": normal or 0.0,
        }
        if type(state["torch"]) is not bytes:  # of a number, bytearray() would make as many bytes
            raise TypeError("torch's generator has a state of bytes")
        of_torch = torch.frombuffer(bytearray(state["torch"]), dtype=torch.uint8)
        torch.Generator().set_state(of_torch)
        return cls(python, numpy, of_torch)


_States = tuple[Any, generators.Numpy, torch.Tensor]
"""The states of ``random``, numpy and torch; numpy's generator itself."""

_owner: threading.Thread | None = None  # None: the main thread
_warned: list[bool] = []  # once it was told that a thread draws from the process's states


def _states_now() -> _States:
    return random.getstate(), generators.of_process(), torch.default_generator.get_state()


def _put(states: _States) -> None:
    python, numpy, of_torch = states
    random.setstate(python)
    generators.put(numpy)
    torch.default_generator.set_state(of_torch)


def own_random_states() -> None:
    """Let this thread's loaders change over the process's random states, and those of no other thread.

    For a program that trains in another thread than the main one, with loaders that make items in this process: call
    it in that thread, before the first item. While items are made, no other thread must draw from ``random``,
    ``np.random`` or torch's default generator. It holds until the thread ends, or the main thread calls it. Raises:
    RuntimeError if another thread than the main one owns them.
    """
    global _owner
    here = threading.current_thread()
    if here is threading.main_thread():
        _owner = None
    elif (owner := _owning()) in (here, threading.main_thread()):
        _owner = here
    else:
        raise RuntimeError(
            f"thread {owner.name!r} owns the process's random states, and one thread alone can: take from loaders with "
            "workers (num_workers=1) in this one"
        )


def _owning() -> threading.Thread:
    return threading.main_thread() if _owner is None or not _owner.is_alive() else _owner


def may_change_states() -> bool:
    """True if the process's random states may be changed over in this thread."""
    return threading.current_thread() is _owning()


def _forget_owner() -> None:
    global _owner
    _owner = None  # the thread that forks is a child's main thread


os.register_at_fork(after_in_child=_forget_owner)


def _drawing(step: Callable[[], T]) -> T:
    """The result of ``step``, under the states that are in place. Warns, once, if it has drawn from them."""
    if _warned:
        return step()
    before = _in_place()
    result = step()
    if _in_place() != before and not _warned:
        _warned.append(True)
        warnings.warn(
            f"a loader makes items in thread {threading.current_thread().name!r}, not in {_owning().name!r}. Meanwhile "
            "random numbers are drawn from the process's generators (random, numpy or torch), which other threads draw "
            "from as well: if functions of this loader draw them, its items are not reproducible, and before a "
            "sharding point some are lost and others come twice. Give it workers (num_workers=1), which have "
            "generators of their own, draw from a generator of your own, or, if no other thread draws, call "
            "torchpipe.own_random_states() in this thread first",
            UserWarning,
            stacklevel=4,
        )
    return result


def _in_place() -> tuple[Any, ...]:
    numpy = get_bit_generator().state["state"]
    words = tuple(value.tobytes() if isinstance(value, np.ndarray) else value for value in numpy.values())
    return random.getstate(), words, torch.get_rng_state().numpy().tobytes()


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
    _put(outside)
    try:
        yield
    finally:
        _put(inside)


class _Guest:
    """A set of global random states that takes the place of the process's own, and puts these back."""

    _outside: _States | None = None
    _pool = generators.POOL

    def _save_outside(self) -> None:
        self._outside = _states_now()
        # Without those whom an interrupt has kept from taking themselves out
        _guests[:] = [*(guest for guest in _guests if guest._outside is not None and guest is not self), self]

    def _put_back(self) -> None:
        """Restore the process's states. Idempotent, and to be called again if it is interrupted."""
        outside = self._outside
        if outside is not None:
            try:
                _put(outside)
            except BaseException:  # an interrupt, say: now whole
                _put(outside)
                raise
            finally:
                self._outside = None
                if self in _guests:
                    _guests.remove(self)


class Own(Protocol):
    """Generators of the user's, which are seeded with the global ones. False where there are none."""

    def __bool__(self) -> bool: ...
    def seed(self, key: StreamKey, number: int, sample: int | None = None) -> None: ...
    def put_back(self) -> AbstractContextManager[None]: ...


class BatchRandom(_Guest):
    """Global random states that begin anew for each batch, from (seed, epoch, batch), wherever the batch is made; or
    for each of its samples, wherever that is made. With them, generators of the user's ``own``.
    """

    def __init__(self, own: Own | None = None) -> None:
        self._numpy: Any = None
        self._own = own
        self._seeds = BatchSeeds()

    def __del__(self) -> None:
        self._pool.give_back(self._numpy)

    def seed(self, seed: int, epoch: int, batch: int, sample: int | None = None) -> None:
        """Put the states of a batch, or of its ``sample``, in place for good: in processes whose own they are."""
        for_python, for_numpy, for_torch = self._seeds.of(seed, epoch, batch, sample)
        random.seed(for_python)
        if not isinstance(get_bit_generator(), np.random.MT19937):
            generators.put((generators.seeded(0), None))
        np.random.seed(for_numpy)
        torch.default_generator.manual_seed(for_torch)
        if self._own:
            self._own.seed((seed, epoch), batch, sample)

    def within(self, seed: int, epoch: int, batch: int, step: Callable[..., T], *, by_sample: bool = False) -> T:
        """The result of ``step``, under a batch's states: an interrupt at any instruction leaves the process its own.

        ``by_sample``: it is given ``reseed``, and puts those of each sample in place by its number.
        """
        if not self._own:
            return self._within(seed, epoch, batch, step, by_sample=by_sample)
        with self._own.put_back():
            return self._within(seed, epoch, batch, step, by_sample=by_sample)

    def _within(self, seed: int, epoch: int, batch: int, step: Callable[..., T], *, by_sample: bool) -> T:
        if not may_change_states():
            if self._own:
                self._own.seed((seed, epoch), batch)
                if by_sample:
                    step = partial(step, reseed=partial(self._own.seed, (seed, epoch), batch))
            return _drawing(step)
        if by_sample:
            step = partial(step, reseed=partial(self.seed, seed, epoch, batch))
        try:
            try:
                self._save_outside()
                if self._numpy is None:
                    self._numpy = generators.seeded(0)
                generators.put((self._numpy, None))
                self.seed(seed, epoch, batch)
                return step()
            finally:
                self._put_back()
        except BaseException:  # an interrupt may have come at its first instruction, behind an error of the step's
            self._put_back()
            raise


class GlobalRandom(_Guest):
    """One set of global random states. ``enter`` puts it in place, ``leave`` takes it out; so does ``with``.

    An interrupt between the two, or in the midst of them, costs this set, and not the process's states: these are put
    back by ``leave``, which does nothing where nothing is to be done. Whoever must not lose them calls it again.

    State: ``None`` while nothing was drawn since seeding, else plain data (about 10 KB). ``state_dict`` raises
    StateError if a user's function has replaced numpy's global bit generator by one of another kind.
    """

    def __init__(self, key: StreamKey) -> None:
        self._key: StreamKey | None = key
        self._initial: dict[str, Any] | None = None  # made when it is asked for: it takes half as long as all the rest
        seed = derive_seed(*key, _PURPOSE)
        self._python = random.Random(seed).getstate()
        self._generator: Any = generators.seeded(seed)
        self._normal: float | None = None
        self._torch = torch.Generator().manual_seed(seed).get_state()

    @classmethod
    def at(cls, states: RandomStates) -> GlobalRandom:
        """A set that goes on from ``states``."""
        made = object.__new__(cls)
        made._key, made._initial, made._generator = None, {}, None
        made._stand_at(states)
        return made

    def __del__(self) -> None:
        self._pool.give_back(getattr(self, "_generator", None))  # it has been in place, or might have been

    def enter(self) -> None:
        """Save the process's states and put this set in place, if this thread may and it is not there."""
        if self.entered or not may_change_states():
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

    def within(self, step: Callable[[], T]) -> T:
        """The result of ``step``, with this set in place: an interrupt at any instruction leaves the process its own.

        ``with`` does not do that: an interrupt may come before the first instruction of ``__exit__``.
        """
        if self.entered:
            return step()
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
    def entered(self) -> bool:
        return self._outside is not None

    def _install(self) -> None:
        _put((self._python, (self._generator, self._normal), self._torch))

    def _capture(self) -> None:
        states = _states_now()
        # Each set has a numpy generator of its own. The process's is in place if leaving was interrupted: this set has
        # lost what it drew, and would draw from that one from now on
        if self._outside is None or states[1][0] is not self._outside[1][0]:
            self._python, (self._generator, self._normal), self._torch = states

    def state_dict(self) -> dict[str, Any] | None:
        if _guests and _guests[-1] is self:  # else it is not in place, or another one is in its place
            self._capture()
        packed = self._packed()
        return None if packed == self._beginning() else packed

    def _packed(self) -> dict[str, Any]:
        numpy = self._generator.state | {"has_gauss": self._normal is not None, "gauss": self._normal}
        return RandomStates(self._python, numpy, self._torch).to_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Raises: ValueError, TypeError and the like for what is no such state; nothing has changed then."""
        self._stand_at(RandomStates.from_dict(self._beginning() if state is None else state))
        if self.entered:
            self._install()

    def _beginning(self) -> dict[str, Any]:
        """The state before anything is drawn, for which :meth:`state_dict` has None."""
        if self._initial is None:
            assert self._key is not None
            self._initial = GlobalRandom(self._key)._packed()
        return self._initial

    def _stand_at(self, states: RandomStates) -> None:
        self._pool.give_back(self._generator)
        self._python, self._torch = states.python, states.of_torch
        self._generator = generators.made(states.numpy)
        self._normal = float(states.numpy["gauss"]) if states.numpy["has_gauss"] else None
