"""Random nodes that torch's loaders seed, and switch on and off."""

from __future__ import annotations

from typing import Any, Self, TypeVar

from torchpipe.errors import StateError
from torchpipe.iter._shared.bases import OneInput
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.randomness.seeds import StreamKey, check_seed

__all__ = ["Switchable"]

T = TypeVar("T")


class Switchable(OneInput[T]):
    """``set_seed`` and ``set_shuffle``."""

    seeded = True  # from the context: a pass is not told a seed by set_seed

    def __init__(self, source: IterDataPipe[Any]) -> None:
        super().__init__(source)
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

    def check_switched(self, state: dict[str, Any]) -> None:
        """Raises: StateError if shuffling was on when ``state`` was saved and is off now, or the other way round."""
        if ("random" in state) != self.enabled:
            raise StateError(
                f"the state was saved with shuffling {'on' if 'random' in state else 'off'}, which it is not now: "
                "call set_shuffle() as it was called then"
            )

    def random_key(self, context: Context) -> StreamKey:
        """The key of the node's random stream in a pass."""
        key = context.stream_key(self)
        return key if self.own_seed is None else (self.own_seed, *key[1:])
