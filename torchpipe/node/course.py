"""The course of a pass: which way the choices of its code have taken it, as one number.

Runs in every process that makes the items of shards.

A resume makes the items since a snapshot again. If the code has been changed meanwhile so that it leaves out, expands
or groups otherwise, these are other items, and what follows them begins elsewhere in the data. A shard therefore tells
with each item the course that led there, which a resume has to find again. A changed function that makes one item of
one does not alter it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from torchpipe.errors import StateMismatchError
from torchpipe.node.checksum import glance

__all__ = ["Course", "Seen"]

T = TypeVar("T")

_MASK = (1 << 61) - 1
_FACTOR = 1_000_003


def _joined(course: int, choice: int) -> int:
    """``course``, and then ``choice``: from 0 to 2**61."""
    return (course * _FACTOR + choice + 2) & _MASK


class Seen:
    """What code that is made to run again from its start has yielded, as one number: does it yield that again?"""

    def __init__(self, course: Course) -> None:
        self.value = 0
        self._course = course

    def note(self, item: Any) -> None:
        """``item`` is yielded, which is a choice."""
        if self._course.kept:
            number = glance(item)
            self.value = _joined(self.value, number)
            self._course.note(number)

    def to_state(self) -> dict[str, int]:
        return {"seen": self.value} if self._course.kept else {}

    def check_replay(self, items: Iterable[Any], state: Mapping[str, Any], name: str) -> None:
        """Run ``items``, as many as ``state`` counts, which are dropped. Raises: StateMismatchError."""
        count, saved = 0, state.get("seen")
        with self._course.aside():
            for item in items:
                count += 1
                self.note(item)
        if self._course.kept and type(saved) is int and saved != self.value:
            raise StateMismatchError(
                f"{name} has no state and is run again from its start, and its first {count} items are others than in "
                "the run that saved the state: its code or its data have changed, or it draws from what is not "
                "reproducible. Load the state with the code that saved it, or give it state_dict() and "
                "load_state_dict(), whose states go on under changed code"
            )


class Course:
    """``kept``: True in the pass of a shard; elsewhere nobody asks. ``alters``: True if code in it makes choices.

    A choice is a number: how many parts an item has, which group it goes into, a glance at what code of the user's
    yields. Each item that the shard hands out counts too, so that it matters between which of them a choice was made.
    """

    __slots__ = ("alters", "kept", "value")

    def __init__(self, kept: bool = False) -> None:
        self.kept = kept
        self.alters = False
        self.value = 0

    def note(self, choice: int) -> None:
        if self.kept:
            self.value = _joined(self.value, choice)

    def step(self) -> None:
        """The shard has handed out an item."""
        self.value = (self.value * _FACTOR + 1) & _MASK

    def along(self, stream: Iterator[T], values: array[int]) -> Iterator[T]:
        """``stream``, each item of which is a step; ``values`` gets the course up to it."""
        note = values.append
        for item in stream:
            self.value = value = (self.value * _FACTOR + 1) & _MASK
            note(value)
            yield item

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Meanwhile, choices are made again that the course has already."""
        value = self.value
        try:
            yield
        finally:
            self.value = value

    def is_at(self, value: Any) -> bool:
        """True if it is what a state says, or if that says nothing."""
        return type(value) is not int or value < 0 or value == self.value
