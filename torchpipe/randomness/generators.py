"""Random generators of any kind, as plain data: their states taken, put back, and one made that is not there.

Runs in every process.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from numpy.random import get_bit_generator  # type: ignore[attr-defined]

from torchpipe.randomness.numpy_generator import MT19937

__all__ = [
    "GENERATORS",
    "MADE",
    "generator_kind",
    "generator_state",
    "is_of_process",
    "put_generator",
    "seed_generator",
]

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
