"""Reading late: choose among the positions of a source, and make only the items that are handed on.

A source that can give its items by position (a sequence, a map-style node) can be asked to yield positions instead.
What only chooses among items or changes their order (``shuffle``, ``sharding_filter``) works on those: its buffer and
its state are integers, and a shard makes the items that it keeps, not all that it passes. The order is the same.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from torchpipe.node.iterator import NodeIterator, Positions

if TYPE_CHECKING:
    from torchpipe.node.context import Context
    from torchpipe.node.traits import DataPipe

__all__ = ["SelectingIterator"]

T = TypeVar("T")


class SelectingIterator(NodeIterator[T]):
    """Base of the passes that hand on what they get, fewer or in another order: define :meth:`choose`.

    ``positions`` is not None where the input yields positions; ``choose`` then sees and yields these. With ``share``
    (parts, which one) it keeps every so many-th: ``strider`` is the pass that leaves out the others itself, if one can.
    """

    def __init__(
        self, node: DataPipe, context: Context, source: DataPipe, share: tuple[int, int] | None = None
    ) -> None:
        super().__init__(node, context, source)
        self.strider: Any = None
        self.positions: Positions | None = None
        found = self.source.by_position
        if found is not None and found.stride is not None and share is not None:
            self.strider = found.owner
            found.stride(*share)
        elif found is not None and found.begin is not None:
            self.positions = found.taken()
        self._reads = self.positions is not None  # else there is no need to, or the node behind does

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

    @property
    def by_position(self) -> Positions | None:
        found = self.positions or self.source.by_position
        return None if found is None or found.begin is None else replace(found, stride=None, begin=self._let_read)

    def _let_read(self) -> None:
        """Hand on positions, of which the node behind makes items."""
        self.positions, self._reads = self.positions or self.source.by_position.taken(), False  # type: ignore[union-attr]

    def run(self) -> Iterator[T]:
        chosen = self.choose()
        return self.positions.read(chosen) if self.positions is not None and self._reads else chosen
