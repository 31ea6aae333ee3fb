"""The private names of numpy that are used, each with its reason. Runs in every process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import mtrand

__all__ = ["put_second_normal", "second_normal"]

_rand: Any = mtrand._rand  # the generator behind np.random's functions


class _NoWords:
    """In place of numpy's bit generator: what of its state is saved and set is left out."""

    @property
    def state(self) -> dict[str, Any]:
        return {"bit_generator": "MT19937"}

    @state.setter
    def state(self, _: object) -> None:
        return


_no_words = _NoWords()


def _without_words(step: Callable[[], Any]) -> Any:
    """What ``step`` returns; meanwhile, numpy's global state consists of the second normal number alone.

    ``np.random.randn`` makes numbers in pairs and keeps the second, which ``set_bit_generator`` drops. Where a shard's
    states are put in place and taken out depends on timing, so the number has to be carried along. In public it comes
    with the generator's 624 words alone: 33 us to read and 37 us to set, for each item that is made in process.
    """
    real = _rand._bit_generator
    try:
        _rand._bit_generator = _no_words
        done = step()  # not return: what Python does straight after the call, an interrupt too, is still in the try
    finally:
        _rand._bit_generator = real
    return done


def second_normal() -> float | None:
    """The normal number that numpy holds ready, if it does."""
    state = _without_words(lambda: np.random.get_state(legacy=False))
    return float(state["gauss"]) if state["has_gauss"] else None


def put_second_normal(value: float) -> None:
    """Let numpy hold ``value`` ready; straight after a change of the generator, when it holds none."""
    state = {"bit_generator": "MT19937", "state": None, "has_gauss": 1, "gauss": value}
    _without_words(lambda: np.random.set_state(state))
