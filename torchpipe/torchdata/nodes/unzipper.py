"""``unzip``: a branch for each column of the items, of one pass."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar

from torchpipe.iter._shared.shared_pass import Container
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count, check_input
from torchpipe.state.copying import separated

__all__ = ["UnZipper"]

T = TypeVar("T")


@functional_datapipe("unzip")
class UnZipper(IterDataPipe[T]):
    """Takes sequences of ``sequence_length`` values, and makes a branch for each position in them: all first values,
    all second ones, and so on, but for the positions ``columns_to_skip``.

    The input is read once for all branches; what one has read and another has not waits in a buffer of ``buffer_size``
    values for each (-1: any number, with a warning). The branches meet again in one graph, as those of ``fork``.

    State: the values in the buffer and the input's state, once.

    Raises: ValueError for arguments out of range, and if no column is left; while iterating, BufferError before the
    buffer would overflow, ValueError for an item of another length.
    """

    def __new__(  # type: ignore[misc]
        cls,
        source_datapipe: IterDataPipe[Sequence[T]],
        sequence_length: int,
        buffer_size: int = 1000,
        columns_to_skip: Sequence[int] | None = None,
    ) -> list[IterDataPipe[T]]:
        check_input("unzip", source_datapipe)
        sequence_length = check_count("sequence_length", sequence_length, at_least=1)
        skipped = {
            check_count("each of columns_to_skip", column, at_least=0, at_most=sequence_length - 1)
            for column in columns_to_skip or ()
        }
        columns = tuple(column for column in range(sequence_length) if column not in skipped)
        if not columns:
            raise ValueError(f"all {sequence_length} columns are in columns_to_skip: nothing is left of unzip()")
        return _UnZipper(source_datapipe, sequence_length, buffer_size, columns).branches()


class _UnZipper(Container):
    form = "unzip"

    def __init__(
        self, datapipe: IterDataPipe[Any], sequence_length: int, buffer_size: int, columns: tuple[int, ...]
    ) -> None:
        super().__init__(datapipe, len(columns), buffer_size)
        self.sequence_length = sequence_length
        self.columns = columns

    def deal(self, item: Any, number: int, fn: Any, branches: Collection[int]) -> Iterable[tuple[int, Any]]:
        if not hasattr(item, "__len__"):
            raise TypeError(
                f"unzip(sequence_length={self.sequence_length}) takes sequences, got item {number} of type "
                f"{type(item).__name__}: {item!r:.200}"
            )
        if len(item) != self.sequence_length:
            raise ValueError(
                f"unzip(sequence_length={self.sequence_length}) got item {number} of length {len(item)}: {item!r:.200}"
            )
        read = list(branches)
        return list(zip(read, separated([item[self.columns[branch]] for branch in read])))
