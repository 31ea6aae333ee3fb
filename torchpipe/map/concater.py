"""``concat`` of map-style nodes: one behind the other."""

from __future__ import annotations

from typing import Any, TypeVar

from torchpipe.map._indices import checked_index
from torchpipe.node.datapipe import MapDataPipe, functional_datapipe
from torchpipe.node.validate import check_map_input

__all__ = ["Concater"]

T = TypeVar("T")


@functional_datapipe("concat")
class Concater(MapDataPipe[T]):
    """The items of the first input, then those of the second one, and so on, each read by indices from 0 on.

    Raises: ValueError without inputs; TypeError for an input that is not map-style; IndexError for an item that is not
    there.
    """

    def __init__(self, *datapipes: MapDataPipe[T]) -> None:
        if not datapipes:
            raise ValueError("concat needs at least one datapipe, got none")
        for datapipe in datapipes:
            check_map_input("concat (map-style)", datapipe)
        self.datapipes = datapipes

    def __getitem__(self, index: Any) -> T:
        number = checked_index("concat", index, len(self))
        for datapipe in self.datapipes:
            if number < len(datapipe):
                return datapipe[number]
            number -= len(datapipe)
        raise AssertionError("checked_index() made sure that it is there")

    def __len__(self) -> int:
        return sum(len(datapipe) for datapipe in self.datapipes)
