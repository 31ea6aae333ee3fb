"""Reading late: choose among the positions of a source, and make only the items that are handed on.

A source that can give its items by position (a sequence, a map-style node) can be asked to yield positions instead.
What only chooses among items or changes their order (``shuffle``, ``sharding_filter``) works on those: its buffer and
its state are integers, and a shard makes the items that it keeps, not all that it passes. The order is the same.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from torchpipe.node.iterator import NodeIterator, Positions

if TYPE_CHECKING:
    from torchpipe.node.context import Context
    from torchpipe.node.traits import DataPipe

__all__ = ["SelectingIterator"]

T = TypeVar("T")


class SelectingIterator(NodeIterator[T]):
    """Base of the passes that hand on what they get, fewer or in another order: define :meth:`choose`.

    ``positions`` is not None where the input yields positions; ``choose`` then sees and yields these.
    """

    strides = False  # True if the input leaves out itself what is not chosen

    def __init__(self, node: DataPipe, context: Context, source: DataPipe) -> None:
        super().__init__(node, context, source)
        self._reads = not self.skips() and self.source.positional  # else there is no need to, or the node behind does
        self.positions = self.source.by_position() if self._reads else None

    @property
    def keeps_items(self) -> bool:  # type: ignore[override]
        """True if its buffer holds items, not positions."""
        return self.positions is None

    @abstractmethod
    def choose(self) -> Iterator[Any]:
        """The items or positions to hand on, from the input's; called as :meth:`run` is."""

    def current(self) -> object:
        return None if self.positions is None else self.positions.current

    def leave_out(self) -> bool:
        return self._reads  # an item that was to be made late; nothing else fails here

    def lost(self, of_input: bool) -> int | None:
        return None if of_input or not self.leave_out() else 1

    def skips(self) -> bool:
        """Let the input leave out what would not be chosen, if it can."""
        return False

    @property
    def positional(self) -> bool:
        return self.source.positional

    def by_position(self) -> Positions:
        if self.positions is None:
            self.positions = self.source.by_position()
        self._reads = False
        return self.positions

    def run(self) -> Iterator[T]:
        chosen = self.choose()
        return self.positions.read(chosen) if self.positions is not None and self._reads else chosen
