"""``dynamic_batch``: batches of consecutive items, as many as a cost allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

from torchpipe.errors import StateError
from torchpipe.iter._shared.bases import ItemIterator, OneInput
from torchpipe.iter._shared.dropped import note_dropped
from torchpipe.node.context import Context
from torchpipe.node.datapipe import DataChunk, IterDataPipe, functional_datapipe
from torchpipe.node.iterator import stored_count, stored_items
from torchpipe.node.plain import checked_size, length_of, plain
from torchpipe.node.traits import callable_name
from torchpipe.node.validate import check_choice, check_columns, check_count

__all__ = ["DynamicBatcher"]

T = TypeVar("T")

_END: Any = object()


class _DynamicIterator(ItemIterator[list[T]]):
    node: DynamicBatcher[T]
    keeps_items = True

    def __init__(self, node: DynamicBatcher[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.cost_fn = self.with_retries(node.cost_fn)
        self.dropped = 0  # items that cost too much
        self.begun: list[Any] = []  # the cost of the item that begins the next batch, and the item
        self.batch: list[T] = []  # in the making
        self.total: float = 0  # its costs
        self.highest: float = 0

    def get_state(self) -> dict[str, Any]:
        return {"begun": self.kept_items(self.begun), "dropped": self.dropped}

    def set_state(self, state: dict[str, Any]) -> None:
        self.begun = stored_items(state, "begun", at_most=2)
        self.dropped = stored_count(state, "dropped")
        cost = self.begun[0] if len(self.begun) == 2 else 0
        if len(self.begun) == 1 or type(cost) not in (int, float) or not cost >= 0:
            raise StateError(f"a batch begins with a cost and an item, the state has {self.begun!r:.60}")

    def run(self) -> Iterator[list[T]]:
        node, most = self.node, self.node.max_items
        while True:
            while entry := self._next():
                cost, item = entry
                highest = max(self.highest, cost)
                after = highest * (len(self.batch) + 1) if node.padded else self.total + cost
                if self.batch and after > node.max_cost:
                    self.begun = entry
                    break
                self.total, self.highest = after, highest
                self.batch.append(item)
                if len(self.batch) == most or after > node.max_cost:
                    break
            full, self.batch, self.total, self.highest = DataChunk(self.batch), [], 0, 0
            if not full:
                return
            yield full

    def _next(self) -> list[Any]:
        """The cost of the next item, and the item; nothing at the end."""
        if self.begun:
            entry, self.begun = self.begun, []
            return entry
        node = self.node
        while (item := next(self.source.items(), _END)) is not _END:
            cost = checked_size(self.cost_fn, item, "the cost")
            if cost <= node.max_cost or node.overflow == "keep":
                return [cost, item]
            if node.overflow == "raise":
                raise ValueError(
                    f"{callable_name(self.cost_fn)} gives a cost of {cost!r} for an item, more than "
                    f"max_cost={node.max_cost}: choose overflow='drop' or 'keep', or filter() these items before"
                )
            self.dropped = note_dropped(self, self.dropped, f"which costs {cost!r}, more than max_cost={node.max_cost}")
        return []

    def close(self) -> None:
        super().close()
        self.begun, self.batch = [], []


@functional_datapipe("dynamic_batch")
class DynamicBatcher(OneInput[list[T]]):
    """Gathers consecutive items into a list as long as they cost no more than ``max_cost`` together.

    ``cost_fn`` gives the cost of an item, by default its length (``len``; of a dict, that of ``input_ids`` or
    ``tokens``). The costs of a batch are summed up; with ``padded``, the highest is taken times the number of items, as
    when all are padded to the longest. ``max_items`` bounds their number. An item that alone costs more raises a
    ValueError, is left out (``overflow="drop"``), or is a batch of its own (``"keep"``). ``sort`` before it, within a
    window, makes for less padding.

    State: the item that begins the next batch.

    Raises: ValueError for a ``max_cost`` that is not above 0, or counts below 1; TypeError if ``cost_fn`` is none.
    """

    iterator = _DynamicIterator

    def __init__(
        self,
        datapipe: IterDataPipe[T],
        max_cost: float,
        cost_fn: Callable[[T], float] = length_of,
        *,
        padded: bool = False,
        max_items: int | None = None,
        overflow: Literal["raise", "drop", "keep"] = "raise",
    ) -> None:
        super().__init__(datapipe)
        check_columns("cost_fn", cost_fn, None)
        check_choice("overflow", overflow, ("raise", "drop", "keep"))
        max_cost = plain(max_cost)
        if isinstance(max_cost, bool) or not isinstance(max_cost, int | float):
            raise TypeError(f"max_cost must be a number, got {max_cost!r} of type {type(max_cost).__name__}")
        if not 0 < max_cost < float("inf"):
            raise ValueError(f"max_cost must be above 0, got {max_cost}")
        self.max_cost = max_cost
        self.cost_fn: Callable[[Any], Any] = cost_fn
        self.padded = padded
        self.max_items = None if max_items is None else check_count("max_items", max_items, at_least=1)
        self.overflow = overflow
