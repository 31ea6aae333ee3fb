"""``unzip`` of map-style nodes: a node for each column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from torchpipe.node.datapipe import MapDataPipe, functional_datapipe
from torchpipe.node.validate import check_count, check_map_input

__all__ = ["UnZipper"]

T = TypeVar("T")


@functional_datapipe("unzip")
class UnZipper(MapDataPipe[T]):
    """A list of nodes, one for each position in the items of ``source_datapipe``, which are sequences of
    ``sequence_length`` values, but for the positions ``columns_to_skip``.

    Raises: ValueError for a ``sequence_length`` below 1, a column that is not there, and if no column is left.
    """

    def __new__(  # type: ignore[misc]
        cls,
        source_datapipe: MapDataPipe[Sequence[T]],
        sequence_length: int,
        columns_to_skip: Sequence[int] | None = None,
    ) -> list[MapDataPipe[T]]:
        check_map_input("unzip (map-style)", source_datapipe)
        sequence_length = check_count("sequence_length", sequence_length, at_least=1)
        skipped = {
            check_count("each of columns_to_skip", column, at_least=0, at_most=sequence_length - 1)
            for column in columns_to_skip or ()
        }
        columns = [column for column in range(sequence_length) if column not in skipped]
        if not columns:
            raise ValueError(f"all {sequence_length} columns are in columns_to_skip: nothing is left of unzip()")
        return [_Column(source_datapipe, column) for column in columns]


class _Column(MapDataPipe[Any]):
    node_title = "a column of unzip()"

    def __init__(self, main_datapipe: MapDataPipe[Any], instance_id: int) -> None:
        self.source = main_datapipe
        self.instance_id = instance_id

    def __getitem__(self, index: Any) -> Any:
        return self.source[index][self.instance_id]

    def __len__(self) -> int:
        return len(self.source)
