"""The states of Mersenne twisters, ``random``'s and numpy's, taken, put back and made as the bytes that they are.

Runs in every process.

``random.getstate()`` makes a tuple of 625 integers, 7 us, ``setstate`` takes it apart again, 2 us, and ``seed`` takes
3.5 us. A loader in the user's process does all that for each batch, where torch's own takes 5 us for everything.
CPython keeps these words behind the object's header, in an array, and numpy's generators tell where theirs are. Where a
trial shows that the words are there, they are copied, 0.1 us. Elsewhere (a free-threaded build, in which another thread
may be drawing meanwhile; another Python) the public functions are used.
"""

from __future__ import annotations

import _random
import ctypes
import random
import struct
import sys
from typing import Any, TypeAlias

import numpy as np

__all__ = ["WORDS", "NumpyTwister", "Twister", "TwisterState", "pack", "unpack"]

WORDS = 624  # of 4 bytes
_VERSION = 3  # of random.getstate()
_LAYOUT = struct.Struct(f"@i{WORDS}I")  # how many words were given out, then the words
_ALL_GIVEN_OUT = struct.pack("@i", WORDS)
_HEADER_BYTES = object.__basicsize__

TwisterState: TypeAlias = tuple[bytes, float | None]
"""The words, with how many of them were given out before them, and the normal number that is held ready."""


def pack(state: tuple[Any, ...]) -> TwisterState:
    """What ``random.getstate()`` returned, as bytes."""
    _, words, gauss = state
    return _LAYOUT.pack(words[WORDS], *words[:WORDS]), gauss


def unpack(state: TwisterState) -> tuple[Any, ...]:
    """The form that ``random.setstate()`` takes."""
    given_out, *words = _LAYOUT.unpack(state[0])
    return _VERSION, (*words, given_out), state[1]


def _memory(address: int) -> memoryview:
    return memoryview((ctypes.c_char * _LAYOUT.size).from_address(address)).cast("B")


def _memory_of(generator: random.Random) -> memoryview:
    """Where its state lies, if the layout is the expected one."""
    return _memory(id(generator) + _HEADER_BYTES)


def _copies_are_whole() -> bool:
    return sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()


def _random_lies_where_expected() -> bool:
    """A trial with a generator of its own: its state is read, and written, at the place in question."""
    if not _copies_are_whole() or _random.Random.__basicsize__ < _HEADER_BYTES + _LAYOUT.size:
        return False
    subject, model = random.Random(1), random.Random(2)
    memory = _memory_of(subject)
    for _ in range(2):  # all words given out, and only some
        if bytes(memory) != pack(subject.getstate())[0]:
            return False
        subject.random()
    model.random()
    memory[:] = pack(model.getstate())[0]
    return subject.getstate() == model.getstate()


def _numpy_lies_where_expected() -> bool:
    """The same for numpy's: the words, then how many were given out."""
    if not _copies_are_whole():
        return False
    subject = np.random.MT19937(1)
    memory = _memory(subject.ctypes.state_address)
    subject.random_raw()
    state = subject.state["state"]
    return bytes(memory) == state["key"].tobytes() + struct.pack("@i", state["pos"])


class Twister:
    """One generator of ``random``: its state taken, put back, or made of given words."""

    __slots__ = ("_generator", "_memory")

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator  # kept alive: its memory is read and written
        self._memory = _memory_of(generator) if _RANDOM_IN_MEMORY else None

    def take(self) -> TwisterState:
        if self._memory is None:
            return pack(self._generator.getstate())
        return bytes(self._memory), self._generator.gauss_next  # type: ignore[attr-defined]

    def put(self, state: TwisterState) -> None:
        if self._memory is None:
            self._generator.setstate(unpack(state))
        else:
            self._memory[:], self._generator.gauss_next = state  # type: ignore[attr-defined]

    def fill(self, words: bytes) -> None:
        """Begin anew with 624 words: random ones, as nothing is done to make them so."""
        self.put((_ALL_GIVEN_OUT + words, None))


class NumpyTwister:
    """A bit generator for numpy that can be made of given words."""

    __slots__ = ("_memory", "generator")

    def __init__(self) -> None:
        self.generator = np.random.MT19937(0)
        self._memory = _memory(self.generator.ctypes.state_address) if _NUMPY_IN_MEMORY else None

    def fill(self, words: bytes) -> None:
        """As :meth:`Twister.fill`."""
        if self._memory is None:
            key = np.frombuffer(words, dtype=np.uint32)
            self.generator.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": WORDS}}
        else:
            self._memory[:] = words + _ALL_GIVEN_OUT


_RANDOM_IN_MEMORY = _random_lies_where_expected()
_NUMPY_IN_MEMORY = _numpy_lies_where_expected()
