"""``shuffle`` of map-style nodes: read them in random order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from torchpipe.indexed.keys import check_keys
from torchpipe.indexed.shuffled import ShuffledKeys, Switched
from torchpipe.node.context import Context
from torchpipe.node.datapipe import MapDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator

__all__ = ["Shuffler"]

T = TypeVar("T")


@functional_datapipe("shuffle", on="map")
class Shuffler(Switched[T]):
    """Reads a map-style node once through in random order: an *iterable* node.

    ``indices`` are the keys to read, by default ``range(len(datapipe))``. The order is a function of seed, epoch and
    position in the graph. A ``sharding_filter`` after it deals the keys: each shard reads only the items that it keeps.

    Up to 2**20 items the order is drawn and stored (8 bytes an item, 16 meanwhile), every order having the same chance.
    That of more is computed, position by position (:class:`~torchpipe.randomness.permuting.ComputedOrder`), which takes
    no memory and no time to begin or to resume. ``computed`` says which, whatever their number.

    State: a key and one integer.

    Raises: TypeError if ``datapipe`` is not map-style or ``indices`` cannot be indexed.
    """

    by_index = True
    fingerprint_data = ("indices",)
    seeded = True  # from the context: a pass is not told a seed by set_seed

    def __init__(
        self, datapipe: MapDataPipe[T], *, indices: Sequence[Any] | None = None, computed: bool | None = None
    ) -> None:
        check_keys("shuffle (map-style)", datapipe, indices)
        self.source = datapipe
        self.indices = indices
        self.computed = computed
        self.own_seed: int | None = None
        self.enabled = True

    def __len__(self) -> int:
        return len(self.source if self.indices is None else self.indices)

    def iterate(self, context: Context) -> NodeIterator[T]:
        keys = range(len(self)) if self.indices is None else self.indices
        return ShuffledKeys(self, context, self.source, keys, self.computed)
