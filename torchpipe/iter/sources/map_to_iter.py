"""``to_iter_datapipe``: read a map-style node in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from torchpipe.indexed.keys import KeysIterator, check_keys
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
    fingerprint_data = ("indices",)

    def __init__(self, datapipe: MapDataPipe[T], indices: Sequence[Any] | None = None) -> None:
        check_keys("to_iter_datapipe", datapipe, indices)
        self.source = datapipe
        self.indices = indices

    def __len__(self) -> int:
        return len(self.source if self.indices is None else self.indices)

    def iterate(self, context: Context) -> NodeIterator[T]:
        keys = range(len(self)) if self.indices is None else self.indices
        return KeysIterator(self, context, self.source, len(self), lambda: keys)
