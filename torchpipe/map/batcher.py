"""``batch`` of map-style nodes: batch number ``i`` is made of items that lie together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torchpipe.map._indices import checked_index
from torchpipe.node.datapipe import DataChunk, MapDataPipe, functional_datapipe
from torchpipe.node.validate import check_count, check_function, check_map_input

__all__ = ["Batcher"]

T = TypeVar("T")


@functional_datapipe("batch")
class Batcher(MapDataPipe[list[T]]):
    """Batch ``i`` has the items from ``i * batch_size`` on; a shorter last one is left out with ``drop_last``.

    The input is read by indices from 0 on. ``wrapper_class`` makes the batch of a list.

    Raises: ValueError if ``batch_size`` is below 1; TypeError if ``wrapper_class`` cannot be called; IndexError for a
    batch that is not there.
    """

    def __init__(
        self,
        datapipe: MapDataPipe[T],
        batch_size: int,
        drop_last: bool = False,
        wrapper_class: Callable[[list[Any]], Any] = DataChunk,
    ) -> None:
        check_map_input("batch (map-style)", datapipe)
        check_function("wrapper_class", wrapper_class)
        self.source = datapipe
        self.batch_size = check_count("batch_size", batch_size, at_least=1)
        self.drop_last = drop_last
        self.wrapper_class = wrapper_class

    def __getitem__(self, index: Any) -> list[T]:
        first = checked_index("batch", index, len(self)) * self.batch_size
        numbers = range(first, min(first + self.batch_size, len(self.source)))
        return self.wrapper_class([self.source[number] for number in numbers])  # type: ignore[no-any-return]

    def __len__(self) -> int:
        full, rest = divmod(len(self.source), self.batch_size)
        return full if self.drop_last or not rest else full + 1
