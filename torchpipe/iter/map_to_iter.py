"""``to_iter_datapipe``: read a map-style node in order. Runs wherever its shard runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from torch.utils.data import MapDataPipe as TorchMapDataPipe

from torchpipe.context import Context
from torchpipe.datapipe import IterDataPipe, MapDataPipe, functional_datapipe
from torchpipe.errors import StateError
from torchpipe.iterator import NodeIterator, stored_count

__all__ = ["MapToIterConverter"]

T = TypeVar("T")


@functional_datapipe("to_iter_datapipe", on="map")
class MapToIterConverter(IterDataPipe[T]):
    """Reads the keys ``indices`` of a map-style node in order, by default ``range(len(datapipe))``.

    State: one integer. Resuming costs nothing, however far on.

    Raises: TypeError if ``datapipe`` is not map-style or ``indices`` cannot be indexed (a generator, say).
    """

    def __init__(self, datapipe: MapDataPipe[T], indices: Sequence[Any] | None = None) -> None:
        if not isinstance(datapipe, TorchMapDataPipe):
            raise TypeError(
                f"to_iter_datapipe needs a MapDataPipe, got {datapipe!r} of type {type(datapipe).__name__}: "
                "wrap a sequence in SequenceWrapper(...)"
            )
        if indices is not None and not (hasattr(indices, "__len__") and hasattr(indices, "__getitem__")):
            raise TypeError(f"indices must be a list of keys, got {indices!r} of type {type(indices).__name__}")
        self.datapipe = datapipe
        self.indices = indices

    def __len__(self) -> int:
        return len(self.datapipe if self.indices is None else self.indices)

    def iterate(self, context: Context) -> NodeIterator[T]:
        return _KeysIterator(self, context)


class _KeysIterator(NodeIterator[T]):
    node: MapToIterConverter[T]

    def __init__(self, node: MapToIterConverter[T], context: Context) -> None:
        super().__init__(node, context)
        self.position = 0

    def get_state(self) -> dict[str, Any]:
        return {"position": self.position}

    def set_state(self, state: dict[str, Any]) -> None:
        self.position = stored_count(state, "position")
        if self.position > len(self.node):
            raise StateError(
                f"the state stands behind item {self.position}, but to_iter_datapipe() reads only {len(self.node)}: "
                "is it the same data?"
            )

    def run(self) -> Iterator[T]:
        data = self.node.datapipe
        indices = range(len(data)) if self.node.indices is None else self.node.indices
        for index in range(self.position, len(indices)):
            self.position = index + 1
            yield data[indices[index]]
