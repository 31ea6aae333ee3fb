"""Random nodes that torch's loaders seed, and switch on and off."""

from __future__ import annotations

from typing import Self, TypeVar

from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.randomness.seeds import StreamKey, check_seed

__all__ = ["Switchable"]

T = TypeVar("T")


class Switchable(IterDataPipe[T]):
    """``set_seed`` and ``set_shuffle``; a class with it sets ``own_seed`` and ``enabled`` in its constructor."""

    own_seed: int | None
    enabled: bool

    def set_seed(self, seed: int) -> Self:
        """Use ``seed`` instead of the pass's own, from the next pass on. For torch's loaders; it changes the node."""
        self.own_seed = check_seed(seed)
        return self

    def set_shuffle(self, shuffle: bool = True) -> Self:
        """Switch shuffling on or off, from the next pass on. For torch's loaders; it changes the node."""
        self.enabled = shuffle
        return self

    def random_key(self, context: Context) -> StreamKey:
        """The key of the node's random stream in a pass."""
        key = context.stream_key(self)
        return key if self.own_seed is None else (self.own_seed, *key[1:])
