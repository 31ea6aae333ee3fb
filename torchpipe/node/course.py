"""The course of a shard: the choices that torchpipe's own nodes have made in a pass over it, as one number.

Runs in every process that makes the items of shards.

A resume makes the items since a snapshot again. If code has been changed meanwhile so that a ``filter`` leaves out
others, or a ``flatmap`` makes more, these are other items, and what follows them begins elsewhere in the data. A shard
therefore tells with its items the course that led there, and a state that is loaded has to come to the same. What items
hold is no choice.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from operator import itemgetter
from typing import TypeAlias, TypeVar

import numpy as np

from torchpipe.compat.torch_datapipes import TorchMapDataPipe
from torchpipe.node.traits import DataPipe, inputs_of, is_ours, traits_of, walk

__all__ = ["Choices", "Course", "course_after", "has_course"]

T = TypeVar("T")

Choices: TypeAlias = tuple[int, bytes]
"""The course before, and what was noted since, eight bytes each."""

_CHOOSES = "_torchpipe_chooses"  # of a node; None where choices of the graph cannot be compared
_STEP = -1 << 63  # in the log: an item was handed out; no choice is that
_LONG = 1 << 16  # a log, where nobody takes it
_first = itemgetter(0)


def has_course(graph: DataPipe) -> bool:
    """True if nodes of the graph make choices, and a resume makes all of them in the order of the run before.

    Not so where branches of one pass are read, where items are dispatched, and where code of the user's, or a map-style
    node, decides when it reads what was chosen.
    """
    chosen = set[int]()  # nodes at which, or before which, choices are made
    for node in walk(graph):
        chooses, follows = getattr(node, _CHOOSES, False), any(id(item) in chosen for item in inputs_of(node))
        if chooses is None or (follows and _reads_at_will(node)):
            return False
        if chooses or follows:
            chosen.add(id(node))
    return bool(chosen)


def _reads_at_will(node: DataPipe) -> bool:
    if isinstance(node, TorchMapDataPipe):
        return True
    return not is_ours(type(node).__module__) and not traits_of(node).one_to_one


def _nothing(_: int) -> None:
    """Where choices are not counted."""


class Course:
    """``known``: True if choices are counted, as in the pass of a shard that :func:`has_course`.

    A choice is a number, which nodes ``note``: how many parts an item has, which group it goes into. Each item that the
    shard hands out counts too, so that it matters between which of them a choice was made. What was noted is a log,
    and the course its checksum: so a log that was sent says what the course was at each of its items.
    """

    __slots__ = ("_before", "_log", "_steps", "known", "note")

    def __init__(self, known: bool = False) -> None:
        self.known = known
        self.note: Callable[[int], object] = _nothing
        self._before = 0  # the course before the log
        self._log = array("q")
        if known:
            self.note = self._log.append
            self._steps = map(self._log.append, repeat(_STEP))

    @property
    def value(self) -> int:
        """The course up to here, from 0 to 2**32 - 1."""
        return zlib.crc32(self._log, self._before)

    def step(self) -> None:
        """The shard has handed out an item."""
        self._log.append(_STEP)
        if len(self._log) > _LONG:
            self.taken()

    def along(self, stream: Iterator[T]) -> Iterator[T]:
        """``stream``, each item of which is a step; without a line of Python for each."""
        return map(_first, zip(stream, self._steps)) if self.known else stream  # the steps have no end

    def taken(self) -> Choices | None:
        """What was noted since it was taken before; None: the course is not known."""
        before, log = self._before, self._log.tobytes()
        self._before = zlib.crc32(log, before)
        del self._log[:]
        return (before, log) if self.known else None

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Meanwhile, choices are made again that the course has already."""
        note, self.note = self.note, _nothing
        try:
            yield
        finally:
            self.note = note

    def to_state(self) -> int | None:
        """The course up to here; None: not known."""
        return self.value if self.known else None

    def load_state(self, value: int | None) -> None:
        """Go on from what :meth:`to_state` gave; from a state that does not know it, it stays unknown."""
        self.taken()
        self._before = value or 0
        if value is None:
            self.known, self.note = False, _nothing


def course_after(choices: Choices, items: int) -> int:
    """The course after the first ``items`` of those that ``choices`` were taken with."""
    before, log = choices
    if not items:
        return before
    steps = np.flatnonzero(np.frombuffer(log, np.int64) == _STEP)
    return zlib.crc32(memoryview(log)[: 8 * (int(steps[items - 1]) + 1)], before)
