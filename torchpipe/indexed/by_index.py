"""Passes over what is read by index: they can leave out what other shards keep, and be read late."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from torchpipe.errors import StateError
from torchpipe.node.iterator import NodeIterator, Positions, stored_count

if TYPE_CHECKING:
    from torchpipe.node.context import Context
    from torchpipe.node.generator_seeding import SeededGenerators
    from torchpipe.node.traits import DataPipe

__all__ = ["ByIndex"]

T = TypeVar("T")


class ByIndex(NodeIterator[T]):
    """Base of the passes over ``length`` items that are read by index: a sharding point behind one makes it read its
    shard's alone. ``own`` seeds generators that the data hold for each item; None where they hold none. State: one
    integer.
    """

    def __init__(self, node: DataPipe, context: Context, length: int, own: SeededGenerators | None) -> None:
        super().__init__(node, context)
        self._length = length
        self._own = own
        self._parts, self._part = 1, 0
        self._yields_positions = False
        self._passed = 0  # items up to the last one yielded

    @abstractmethod
    def read_at(self) -> Callable[[int], Any]:
        """The function from an index to its item, as the pass begins."""

    @abstractmethod
    def give_keys(self) -> None:
        """Yield the keys, or indices, of items in their place. Called before anything else."""

    @property
    def position(self) -> int:
        """The number of items up to the last one yielded."""
        return self._passed

    def current(self) -> object:
        return self._passed - 1

    def get_state(self) -> dict[str, Any]:
        return {"position": self.position}

    def set_state(self, state: dict[str, Any]) -> None:
        self._passed = stored_count(state, "position")
        if self._passed > self._length:
            raise StateError(
                f"the state stands after item {self._passed}, but there are only {self._length} to read: is it the "
                "same data?"
            )

    @property
    def by_position(self) -> Positions | None:
        return Positions(
            self,
            self.stride,
            self._yield_positions,
            self.reader,
            lambda value: type(value) is int and 0 <= value < self._length,
        )

    def stride(self, parts: int, part: int) -> None:
        """Read items ``part``, ``part + parts`` ... alone."""
        self._parts, self._part = parts, part

    def _yield_positions(self) -> None:
        self._yields_positions = True

    def reader(self) -> Callable[[int], Any]:
        """:meth:`read_at`, with retries, and with the random states of this pass."""
        read = self.read_at()
        if self._own is not None:
            read = self._own.around(read, lambda: self.context.stream_key(self.node))
        return self.pass_engine.drawing(self.with_retries(read))

    def first_from(self, position: int) -> int:
        """The first index from ``position`` on that is this shard's."""
        return position + (self._part - position) % self._parts

    def leave_out(self) -> bool:
        return True
