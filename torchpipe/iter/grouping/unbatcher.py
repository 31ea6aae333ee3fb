"""``unbatch``: take lists apart again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchpipe.iter._shared.bases import OneInput
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator, stored_items
from torchpipe.node.validate import check_count
from torchpipe.state.copying import separated

__all__ = ["UnBatcher"]


class _UnBatchIterator(NodeIterator[Any]):
    node: UnBatcher
    keeps_items = True

    def __init__(self, node: UnBatcher, context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.parts: list[Any] = []
        self.handed_out = 0  # how many of the parts

    def get_state(self) -> dict[str, Any]:
        return {"left": self.kept_items(self.parts[self.handed_out :])}

    def set_state(self, state: dict[str, Any]) -> None:
        self.parts = stored_items(state, "left")

    def run(self) -> Iterator[Any]:
        yield from self._hand_out()
        level = self.node.unbatch_level
        for item in self.source.items():
            self.parts = separated(list(self._flat(item, level)))
            self.handed_out = 0
            yield from self._hand_out()

    def leave_out(self) -> bool:
        self.parts = []
        return True

    def _hand_out(self) -> Iterator[Any]:
        for part in self.parts:
            self.handed_out += 1
            yield part

    def _flat(self, item: Any, level: int) -> Iterator[Any]:
        if level == 0 or (level < 0 and not isinstance(item, list)):
            yield item
        elif isinstance(item, list):
            for part in item:
                yield from self._flat(part, level - 1 if level > 0 else level)
        else:
            raise IndexError(
                f"unbatch(unbatch_level={self.node.unbatch_level}) goes deeper than the items: found a "
                f"{type(item).__name__} where a list was expected. Use a smaller level, or -1 for all there are"
            )


@functional_datapipe("unbatch")
class UnBatcher(OneInput[Any]):
    """Takes lists apart, ``unbatch_level`` levels deep (-1: all); tuples, arrays and tensors are left whole.

    State: what is left of the list being taken apart.

    Raises: ValueError if ``unbatch_level`` is below -1; IndexError, while iterating, if an item has fewer levels.
    """

    iterator = _UnBatchIterator

    def __init__(self, datapipe: IterDataPipe[Any], unbatch_level: int = 1) -> None:
        super().__init__(datapipe)
        self.unbatch_level = check_count("unbatch_level", unbatch_level, at_least=-1)
