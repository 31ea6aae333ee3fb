"""Reading by index in random order, and what nodes that shuffle have in common.

Runs in every process that executes a part of a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from torchpipe.errors import StateError, StateMismatchError
from torchpipe.indexed.keys import KeysIterator
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.randomness.seeds import ComputedOrder, StreamKey, check_seed, permutation, stored_key

if TYPE_CHECKING:
    from torchpipe.node.context import Context

__all__ = ["ShuffledKeys", "Switched"]

T = TypeVar("T")

_STORED = 1 << 20  # the most items whose order is stored, unless told otherwise: part of the order's definition


class Switched(IterDataPipe[T]):
    """Base of the nodes that torch's loaders seed, and switch on and off: ``set_seed`` and ``set_shuffle``."""

    own_seed: int | None
    enabled: bool

    def set_seed(self, seed: int) -> Self:
        """Let passes that ``iter()`` begins have ``seed``. For torch's loaders, which tell one for each epoch; it
        changes the node. Loaders of torchpipe's have a seed of their own.
        """
        self.own_seed = check_seed(seed)
        return self

    def set_shuffle(self, shuffle: bool = True) -> Self:
        """Switch shuffling on or off, from the next pass on. For torch's loaders; it changes the node."""
        self.enabled = shuffle
        return self

    def check_switched(self, state: dict[str, Any], name: str = "random") -> None:
        """Raises: StateError if shuffling was on when ``state`` was saved and is off now, or the other way round;
        ``name`` is in the states of those that shuffle.
        """
        if (name in state) != self.enabled:
            raise StateError(
                f"the state was saved with shuffling {'on' if name in state else 'off'}, which it is not now: "
                "call set_shuffle() as it was called then"
            )

    def random_key(self, context: Context) -> StreamKey:
        """The key of the node's random stream in a pass."""
        key = context.stream_key(self)
        return key if self.own_seed is None or not context.asks_nodes else (self.own_seed, *key[1:])


class _Ordered(Sequence[Any]):
    """``keys`` in another order."""

    def __init__(self, keys: Sequence[Any], order: np.ndarray[Any, Any] | ComputedOrder) -> None:
        self._keys = keys
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: Any) -> Any:
        return self._keys[int(self._order[index])]


class ShuffledKeys(KeysIterator[T]):
    """Reads ``data`` at ``keys`` in random order, every order having the same chance, while ``node`` is switched on.

    The order of up to 2**20 keys is drawn and stored, that of more is computed; ``computed`` says which, whatever their
    number. State: a key, the number of keys and one integer.
    """

    def __init__(
        self, node: Switched[T], context: Context, data: Any, keys: Sequence[Any], computed: bool | None = None
    ) -> None:
        super().__init__(node, context, data, len(keys), self._order)
        self._all = keys
        self._shuffles = node
        self.key = self._shuffles.random_key(context)
        self.computed = self._length > _STORED if computed is None else computed

    def _order(self) -> Sequence[Any]:
        if not self._shuffles.enabled:
            return self._all
        kind: Any = ComputedOrder if self.computed else permutation
        return _Ordered(self._all, kind(self.key, self._length))

    def get_state(self) -> dict[str, Any]:
        order = {"key": list(self.key), "computed": self.computed, "length": self._length}
        return super().get_state() | (order if self._shuffles.enabled else {})

    def set_state(self, state: dict[str, Any]) -> None:
        self._shuffles.check_switched(state, "key")
        super().set_state(state)
        if self._shuffles.enabled:
            if state["computed"] is not self.computed:
                raise StateError(
                    f"the state was saved with computed={state['computed']!r:.20}, here it is {self.computed}: are "
                    f"there as many items as then ({self._length})?"
                )
            if (length := state.get("length", self._length)) != self._length:  # former states have none
                raise StateMismatchError(
                    f"the state was saved in a random order of {length!r:.20} items, and here are {self._length}, of "
                    "which the order is another: restore the data, or begin the epoch anew"
                )
            self.key = stored_key(state["key"])
