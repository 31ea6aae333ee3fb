"""The global random states of ``random``, numpy and torch, kept apart for each shard.

Runs in every process that executes a shard.

User functions draw from the global generators. For their draws to be a function of (seed, epoch, shard) alone, a shard
owns a set of global states, seeded from those three; it is put in place while the shard runs and taken out again,
so the user's own global states are never touched.

numpy makes legacy normal numbers (``np.random.randn``) in pairs, and keeps the second of a pair beside the bit
generator; changing the generator drops it. It belongs to the state: it is carried along.
"""

from __future__ import annotations

import copy
import hashlib
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.random import get_bit_generator, mtrand, set_bit_generator  # type: ignore[attr-defined]

from torchpipe.errors import StateError
from torchpipe.randomness.seeds import StreamKey, derive_seed

__all__ = ["BatchRandom", "GlobalRandom", "batch_seeds"]

T = TypeVar("T")

_rand: Any = mtrand._rand  # the generator behind np.random's functions
_WORDS = 624  # of a Mersenne twister; numpy does not check where in them a state says it stands
_PURPOSE = 0x9E3779B9  # keeps these seeds apart from those of nodes


@dataclass
class _NumpyState:
    """A generator's state in place of the generator, which takes longer to make."""

    state: Any


def _without_words(step: Callable[[], Any]) -> Any:
    """What ``step`` returns; meanwhile, numpy's global state consists of the second normal number alone.

    For this, and nothing else, a private attribute of numpy's is used: in public, ``get_state`` and ``set_state`` carry
    that number with the generator's 624 words alone. They take about 80 us each with both cores busy, and even to learn
    that there is no such number, both sets would have to be read. Putting a set in place and taking it out would take
    249 us, not 79, and an item made alone 287 us, not 100; one of many made ahead (P13) 2.0 us, not 1.8.
    """
    real = _rand._bit_generator
    try:
        _rand._bit_generator = SimpleNamespace(state={"bit_generator": "MT19937"})
        done = step()  # not return: what Python does straight after the call, an interrupt too, is still in the try
    finally:
        _rand._bit_generator = real
    return done


def _second_normal() -> float | None:
    """The normal number that numpy holds ready, if it does."""
    state = _without_words(lambda: np.random.get_state(legacy=False))
    return float(state["gauss"]) if state["has_gauss"] else None


def _put_second_normal(value: float | None) -> None:
    """Let numpy hold ``value`` ready; straight after a change of the generator, when it holds none."""
    if value is not None:
        state = {"bit_generator": "MT19937", "state": None, "has_gauss": 1, "gauss": value}
        _without_words(lambda: np.random.set_state(state))


def _put(python: Any, numpy: Any, normal: float | None, of_torch: torch.Tensor) -> None:
    """Put states in place."""
    random.setstate(python)
    set_bit_generator(numpy)
    _put_second_normal(normal)
    torch.set_rng_state(of_torch)


def batch_seeds(seed: int, epoch: int, batch: int) -> tuple[int, int, int]:
    """What a batch's generators are seeded with: ``random``'s, torch's and numpy's."""
    key = hashlib.blake2b(struct.pack("<QQQ", seed, epoch, batch), digest_size=20).digest()
    for_python, for_torch, for_numpy = struct.unpack("<QQI", key)
    return for_python, for_torch >> 1, for_numpy  # a dataset that returns torch.initial_seed() needs 63 bits


class _Guest:
    """What puts global random states in place of the process's own, and these back."""

    _outside: tuple[Any, Any, float | None, torch.Tensor] | None = None

    def _save_outside(self) -> None:
        self._outside = (random.getstate(), get_bit_generator(), _second_normal(), torch.get_rng_state())

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


class BatchRandom(_Guest):
    """Global random states that begin anew for each batch, from (seed, epoch, batch), wherever the batch is made."""

    def __init__(self) -> None:
        self._numpy: Any = np.random.MT19937(0)

    @staticmethod
    def seed(seed: int, epoch: int, batch: int) -> None:
        """Seed the states that are in place: for processes whose own they are. 15 us or so."""
        for_python, for_torch, for_numpy = batch_seeds(seed, epoch, batch)
        random.seed(for_python)
        torch.default_generator.manual_seed(for_torch)
        np.random.seed(for_numpy)

    def enter(self, seed: int, epoch: int, batch: int) -> None:
        """Save the process's states and put a batch's in place, until :meth:`leave`."""
        self._save_outside()
        set_bit_generator(self._numpy)
        self.seed(seed, epoch, batch)

    leave = _Guest._put_back

    def within(self, seed: int, epoch: int, batch: int, step: Callable[[], T]) -> T:
        """What ``step`` returns, under a batch's states: an interrupt at any instruction leaves the process its own."""
        try:
            self.enter(seed, epoch, batch)
            result = step()
            self.leave()
            return result
        except BaseException:
            self.leave()
            raise


class GlobalRandom(_Guest):
    """One set of global random states. ``enter`` puts it in place, ``leave`` takes it out; not reentrant.

    An interrupt between the two, or in the midst of them, costs this set, and not the process's states: these are put
    back by ``leave``, which does nothing where nothing is to be done. Whoever must not lose them calls it again.

    State: ``None`` while nothing was drawn since seeding, else plain data (about 10 KB). ``state_dict`` raises
    StateError if a user's function has replaced numpy's global bit generator by one of another kind.
    """

    def __init__(self, key: StreamKey) -> None:
        seed = derive_seed(*key, _PURPOSE)
        self._numpy: Any = np.random.MT19937(seed)
        self._normal: float | None = None
        self._python = random.Random(seed).getstate()
        self._torch = torch.Generator().manual_seed(seed).get_state()
        self._initial = self.to_dict()

    @classmethod
    def present(cls) -> GlobalRandom:
        """A copy of the states that are in place now."""
        copied = object.__new__(cls)
        copied._initial = {}
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
        """Save the process's states and put this set in place."""
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
        if isinstance(self._numpy, _NumpyState):
            state, self._numpy = self._numpy.state, np.random.MT19937()
            self._numpy.state = state
        _put(self._python, self._numpy, self._normal, self._torch)

    def _capture(self) -> None:
        self._python = random.getstate()
        self._torch = torch.get_rng_state()
        self._numpy = get_bit_generator()
        self._normal = _second_normal()

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

    def state_dict(self) -> dict[str, Any] | None:
        if self.entered:
            self._capture()
        packed = self.to_dict()
        return None if packed == self._initial else packed

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Raises: ValueError, TypeError and the like for what is no such state; nothing has changed then."""
        state = self._initial if state is None else state
        version, words, gauss = state["python"]
        python = (version, tuple(np.frombuffer(words, dtype=np.uint32).tolist()), gauss)
        random.Random().setstate(python)  # complains of all that would fail when it is put in place
        key, pos, normal = state["numpy"]
        if type(pos) is not int or not 0 <= pos <= _WORDS or len(key) != 4 * _WORDS:
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
