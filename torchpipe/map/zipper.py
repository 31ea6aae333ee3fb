"""``zip`` of map-style nodes: tuples of the items of one key."""

from __future__ import annotations

from typing import Any

from torchpipe.map._indices import checked_index
from torchpipe.node.datapipe import MapDataPipe, functional_datapipe
from torchpipe.node.plain import plain_key
from torchpipe.node.validate import check_map_input

__all__ = ["Zipper"]


@functional_datapipe("zip")
class Zipper(MapDataPipe[tuple[Any, ...]]):
    """Under each key, the tuple of what all inputs have there; as long as the shortest one. Negative indices count from
    its end.

    Raises: ValueError without inputs; TypeError for an input that is not map-style; IndexError or KeyError for what one
    of them does not have.
    """

    def __init__(self, *datapipes: MapDataPipe[Any]) -> None:
        if not datapipes:
            raise ValueError("zip needs at least one datapipe, got none")
        for datapipe in datapipes:
            check_map_input("zip (map-style)", datapipe)
        self.datapipes = datapipes

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        index = plain_key(index)
        if type(index) is int and index < 0:  # the inputs, which may be longer, would each count from their own end
            index = checked_index("zip", index, len(self))
        return tuple(self._item(datapipe, index) for datapipe in self.datapipes)

    def _item(self, datapipe: MapDataPipe[Any], index: Any) -> Any:
        try:
            return datapipe[index]
        except LookupError as error:
            error.add_note(f"Index {index!r} is out of range for one of the inputs of zip, {datapipe!r}")
            raise

    def __len__(self) -> int:
        return min(len(datapipe) for datapipe in self.datapipes)
