"""The course of a shard: the choices that torchpipe's own nodes have made in a pass over it, as one number.

Runs in every process that makes the items of shards.

A resume makes the items since a snapshot again. If code has been changed meanwhile so that a ``filter`` leaves out
others, or a ``flatmap`` makes more, these are other items, and what follows them begins elsewhere in the data. A shard
therefore tells with each item the course that led there, and a state that is loaded has to come to the same. What items
hold is no choice.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from torchpipe.compat.torch_datapipes import TorchMapDataPipe
from torchpipe.node.traits import DataPipe, inputs_of, is_ours, traits_of, walk

__all__ = ["Course", "has_course"]

T = TypeVar("T")

_CHOOSES = "_torchpipe_chooses"  # of a node; None where choices of the graph cannot be compared
_MASK = (1 << 61) - 1
_FACTOR = 1_000_003


def has_course(graph: DataPipe) -> bool:
    """True if nodes of the graph make choices, and a resume makes all of them in the order of the run before.

    Not so where branches of one pass are read, where ``on_error("skip")`` leaves out what raises and may not raise
    again, where items are dispatched, and where code of the user's, or a map-style node, decides when it reads what was
    chosen.
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


class Course:
    """``known``: True if choices are counted, as in the pass of a shard that :func:`has_course`.

    A choice is a number: how many parts an item has, which group it goes into. Each item that the shard hands out
    counts too, so that it matters between which of them a choice was made.
    """

    __slots__ = ("known", "value")

    def __init__(self, known: bool = False) -> None:
        self.known = known
        self.value = 0  # from 0 to 2**61

    def note(self, choice: int) -> None:
        if self.known:
            self.value = (self.value * _FACTOR + choice + 2) & _MASK

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

    def to_state(self) -> int | None:
        """The course up to here; None: not known."""
        return self.value if self.known else None

    def load_state(self, value: int | None) -> None:
        """Go on from what :meth:`to_state` gave; from a state that does not know it, it stays unknown."""
        self.known = self.known and value is not None
        self.value = value or 0
