"""``shuffle`` of map-style nodes: read them in random order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, TypeVar

import numpy as np

from torchpipe.errors import StateError
from torchpipe.indexed.keys import KeysIterator, check_keys
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, MapDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.randomness.permuting import ComputedOrder
from torchpipe.randomness.seeds import StreamKey, check_seed, permutation, stored_key

__all__ = ["Shuffler"]

T = TypeVar("T")

_STORED = 1 << 20  # the most items whose order is stored, unless told otherwise: part of the order's definition


@functional_datapipe("shuffle", on="map")
class Shuffler(IterDataPipe[T]):
    """Reads a map-style node once through in random order: an *iterable* node.

    ``indices`` are the keys to read, by default ``range(len(datapipe))``. The order is a function of seed, epoch and
    place in the graph. A ``sharding_filter`` after it deals the keys: each shard reads only the items that it keeps.

    Up to 2**20 items the order is drawn and stored (8 bytes an item, 16 meanwhile), every order having the same chance.
    That of more is computed, place by place (:class:`~torchpipe.randomness.permuting.ComputedOrder`), which takes no
    memory and no time to begin or to resume. ``computed`` says which, whatever their number.

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

    def set_seed(self, seed: int) -> Self:
        """Use ``seed`` instead of the pass's own, from the next pass on. For torch's loaders; it changes the node."""
        self.own_seed = check_seed(seed)
        return self

    def set_shuffle(self, shuffle: bool = True) -> Self:
        """Switch shuffling on or off, from the next pass on. For torch's loaders; it changes the node."""
        self.enabled = shuffle
        return self

    def __len__(self) -> int:
        return len(self.source if self.indices is None else self.indices)

    def iterate(self, context: Context) -> NodeIterator[T]:
        key = context.stream_key(self)
        return _ShuffledIterator(self, context, key if self.own_seed is None else (self.own_seed, *key[1:]))


class _Ordered(Sequence[Any]):
    """``keys`` in another order."""

    def __init__(self, keys: Sequence[Any], order: np.ndarray[Any, Any] | ComputedOrder) -> None:
        self._keys = keys
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, place: Any) -> Any:
        return self._keys[int(self._order[place])]


class _ShuffledIterator(KeysIterator[T]):
    node: Shuffler[T]

    def __init__(self, node: Shuffler[T], context: Context, key: StreamKey) -> None:
        super().__init__(node, context, node.source, len(node), self._order)
        self.key = key
        self.computed = self._length > _STORED if node.computed is None else node.computed

    def _order(self) -> Sequence[Any]:
        keys = range(self._length) if self.node.indices is None else self.node.indices
        if not self.node.enabled:
            return keys
        kind: Any = ComputedOrder if self.computed else permutation
        return _Ordered(keys, kind(self.key, self._length))

    def get_state(self) -> dict[str, Any]:
        order = {"key": list(self.key), "computed": self.computed} if self.node.enabled else {}
        return super().get_state() | order

    def set_state(self, state: dict[str, Any]) -> None:
        if ("key" in state) != self.node.enabled:
            raise StateError(
                f"the state was saved with shuffling {'on' if 'key' in state else 'off'}, which it is not now: "
                "call set_shuffle() as it was called then"
            )
        super().set_state(state)
        if self.node.enabled:
            if state["computed"] is not self.computed:
                raise StateError(
                    f"the state was saved with computed={state['computed']!r:.20}, here it is {self.computed}: are "
                    f"there as many items as then ({self._length})?"
                )
            self.key = stored_key(state["key"])
