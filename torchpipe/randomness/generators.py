"""Random generators of any kind, as plain data: their states taken, put back, and one made that is not there.

numpy's global bit generators: which stands behind ``np.random``'s functions, and the normal number held ready.

Runs in every process.

numpy makes legacy normal numbers (``np.random.randn``) in pairs, and keeps the second of a pair beside the bit
generator; changing the generator drops it. In public it is read and set together with the generator's 624 words alone,
for 75 us. The generators of this module leave these words out where this module asks.

numpy holds no reference to the generator that a draw in another thread is using. So one that has been in place is never
freed: whoever made it gives it back, and it is used again.
"""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import torch
from numpy.random import get_bit_generator, set_bit_generator  # type: ignore[attr-defined]

__all__ = [
    "GENERATORS",
    "MADE",
    "MT19937",
    "POOL",
    "Numpy",
    "Pool",
    "generator_kind",
    "generator_state",
    "is_of_process",
    "made",
    "of_process",
    "put",
    "put_generator",
    "put_state",
    "seed_generator",
    "seeded",
    "state_in_place",
]

_whole: Any = np.random.MT19937.state


class MT19937(np.random.MT19937):  # of this name, by which numpy knows the kind
    """numpy's standard bit generator, which leaves its words out of its state for the thread that says so."""

    without_words: int | None = None  # a thread's number

    @property
    def state(self) -> Any:
        if self.without_words == threading.get_ident():
            return {"bit_generator": "MT19937", "state": None}
        return _whole.__get__(self)

    @state.setter
    def state(self, value: Any) -> None:
        if self.without_words != threading.get_ident():
            _whole.__set__(self, value)

    def __reduce__(self) -> Any:
        """Copies, and what is pickled, are numpy's own."""
        plain = np.random.MT19937(0)
        plain.state = _whole.__get__(self)
        return plain.__reduce__()


Numpy = tuple[Any, float | None]
"""A bit generator, and the normal number that numpy holds ready with it."""

_replaced: list[Any] = []  # the process's first generator, which other threads may be drawing from


class Pool:
    """Generators that have been in place, and are nobody's. Thread-safe."""

    def __init__(self) -> None:
        self.free: list[MT19937] = []
        self._kind = MT19937  # while a program ends, modules have no names any more

    def give_back(self, generator: Any) -> None:
        """Whoever had ``generator`` in place needs it no more."""
        if type(generator) is self._kind:
            self.free.append(generator)


POOL = Pool()


def seeded(seed: int) -> Any:
    """A standard bit generator, as ``np.random.MT19937(seed)``."""
    return _standard(dict(np.random.MT19937(seed).state)) if POOL.free else MT19937(seed)


def _standard(state: dict[str, Any]) -> Any:
    """A standard bit generator in ``state``, which it copies."""
    try:
        made = POOL.free.pop()
    except IndexError:
        made = MT19937(0)
    made.state = state
    return made


def made(state: dict[str, Any]) -> Any:
    """A bit generator of the kind and in the state that ``state`` describes."""
    if state["bit_generator"] == "MT19937":
        return _standard(state)
    other = getattr(np.random, state["bit_generator"])(0)
    other.state = state
    return other


def _second_normal() -> float | None:
    """The normal number that numpy holds ready, if it does."""
    present = get_bit_generator()
    if type(present) is not MT19937:
        state = np.random.get_state(legacy=False)
    else:
        present.without_words = threading.get_ident()
        try:
            state = np.random.get_state(legacy=False)
        finally:
            present.without_words = None
    return float(state["gauss"]) if state["has_gauss"] else None


def of_process() -> Numpy:
    """The generator in place, and its second normal. The standard one is this module's from the first call on."""
    present, normal = get_bit_generator(), _second_normal()
    if type(present) is np.random.MT19937:
        _replaced.append(present)
        put((_standard(dict(present.state)), normal))
        present = get_bit_generator()
    return present, normal


def put(numpy: Numpy) -> None:
    """Put it in place."""
    generator, normal = numpy
    set_bit_generator(generator)
    if normal is None:
        return
    if type(generator) is not MT19937:
        np.random.set_state(generator.state | {"has_gauss": 1, "gauss": normal})
        return
    generator.without_words = threading.get_ident()
    try:
        np.random.set_state({"bit_generator": "MT19937", "state": None, "has_gauss": 1, "gauss": normal})
    finally:
        generator.without_words = None


def state_in_place() -> dict[str, Any]:
    """The state of what is in place, as :func:`put_state` takes it: a copy, whatever kind of generator that is."""
    return np.random.get_state(legacy=False)


def put_state(state: dict[str, Any]) -> None:
    """Let what is in place stand as ``state`` says. A generator of another kind is replaced by one of that kind."""
    present = get_bit_generator()
    if present.state["bit_generator"] != state["bit_generator"]:
        _replaced.append(present)
        put((made(state), None))
    np.random.set_state(state)


GENERATORS = (
    random.Random,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    torch.Generator,
)


_OF_PROCESS = (random.random.__self__, np.random.random_sample.__self__, torch.default_generator)  # type: ignore[attr-defined]


def is_of_process(value: Any) -> bool:
    """True for the generators behind ``random``, ``np.random`` and torch's functions, or that stand there at times."""
    bits = getattr(value, "bit_generator", value)
    return any(value is item for item in _OF_PROCESS) or bits is get_bit_generator() or type(bits) is MT19937


def generator_kind(value: Any) -> str:
    return next(kind for kind, cls in zip(MADE, GENERATORS) if isinstance(value, cls))


def _bits(state: Any) -> Any:
    name = state["bit_generator"]
    if name not in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"):
        raise ValueError(f"numpy has no bit generator {name!r:.40}")
    return getattr(np.random, name)(0)


MADE: dict[str, Any] = {
    "random.Random": lambda state: random.Random(0),
    "numpy.Generator": lambda state: np.random.Generator(_bits(state)),
    "numpy.RandomState": lambda state: np.random.RandomState(0),
    "numpy.BitGenerator": _bits,
    "torch.Generator": lambda state: torch.Generator(),
}
"""The makers of generators that are not there any more, or not yet. In the order of ``GENERATORS``."""


def generator_state(value: Any) -> Any:
    """Plain data; None for one that has no state (``random.SystemRandom``)."""
    if isinstance(value, random.Random):
        try:
            version, words, gauss = value.getstate()
        except (NotImplementedError, ValueError, TypeError):
            return None
        return [version, list(words), gauss]
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)
    return (value.bit_generator if isinstance(value, np.random.Generator) else value).state


def put_generator(value: Any, state: Any) -> None:
    if isinstance(value, random.Random):
        version, words, gauss = state
        value.setstate((version, tuple(words), gauss))
    elif isinstance(value, torch.Generator | np.random.RandomState):
        value.set_state(state)
    else:
        (value.bit_generator if isinstance(value, np.random.Generator) else value).state = state


def seed_generator(value: Any, seed: int) -> None:
    """Let it begin by ``seed``, of 64 bits. Raises: what a generator does that does not know how."""
    if isinstance(value, random.Random):
        value.seed(seed)
    elif isinstance(value, torch.Generator):
        value.manual_seed(seed >> 1)
    elif isinstance(value, np.random.RandomState):
        kind = value.get_state(legacy=False)["bit_generator"]
        value.set_state(getattr(np.random, kind)(seed).state | {"has_gauss": 0, "gauss": 0.0})
    else:
        bits = value.bit_generator if isinstance(value, np.random.Generator) else value
        bits.state = type(bits)(seed).state
