"""``to_iter_datapipe``: read a map-style node in order. Runs wherever its shard runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from torch.utils.data import MapDataPipe as TorchMapDataPipe

from torchpipe.indexed.keys import KeysIterator
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, MapDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator

__all__ = ["MapToIterConverter"]

T = TypeVar("T")


@functional_datapipe("to_iter_datapipe", on="map")
class MapToIterConverter(IterDataPipe[T]):
    """Reads the keys ``indices`` of a map-style node in order, by default ``range(len(datapipe))``.

    A ``sharding_filter`` after it, ``shuffle`` between them or not, makes each shard read only the keys that it keeps.

    State: one integer. Resuming costs nothing, however far on.

    Raises: TypeError if ``datapipe`` is not map-style or ``indices`` cannot be indexed (a generator, say).
    """

    by_index = True

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
        keys = range(len(self)) if self.indices is None else self.indices
        return KeysIterator(self, context, self.datapipe, len(self), lambda: keys)
