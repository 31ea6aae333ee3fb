"""``map`` of map-style nodes: apply a function to an item when it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from torchpipe.node.datapipe import MapDataPipe, functional_datapipe
from torchpipe.node.validate import check_columns, check_map_input

__all__ = ["Mapper"]

T = TypeVar("T")
R = TypeVar("R")


def _unchanged(item: Any) -> Any:
    return item


@functional_datapipe("map")
class Mapper(MapDataPipe[R]):
    """Applies ``fn`` to every item that is read.

    Raises: TypeError if ``datapipe`` is not map-style or ``fn`` is no function; ValueError if ``fn`` does not take one
    argument.
    """

    @overload
    def __init__(self, datapipe: MapDataPipe[T], fn: Callable[[T], R]) -> None: ...
    @overload
    def __init__(self: Mapper[T], datapipe: MapDataPipe[T]) -> None: ...
    def __init__(self, datapipe: MapDataPipe[Any], fn: Callable[[Any], Any] = _unchanged) -> None:
        check_map_input("map (map-style)", datapipe)
        check_columns("fn", fn, None)
        self.source = datapipe
        self.fn: Callable[[Any], R] = fn

    def __getitem__(self, index: Any) -> R:
        return self.fn(self.source[index])

    def __len__(self) -> int:
        return len(self.source)
