"""``SampleMultiplexer``: items of several inputs, drawn by weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, TypeVar

from torchpipe.errors import StateError
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator, stored_items
from torchpipe.node.plain import plain
from torchpipe.node.validate import check_input
from torchpipe.randomness.seeds import IndexStream, StreamKey, check_seed

__all__ = ["SampleMultiplexer"]

T = TypeVar("T")
_END: Any = object()
_FINE = 1 << 53  # so many steps of a drawn number


class SampleMultiplexer(IterDataPipe[T]):
    """Draws for each item which input it comes from, by the weights in ``pipes_to_weights_dict``, until all have ended.

    Inputs that have ended are drawn no more. The draws are a function of seed, epoch and position in the graph; with
    ``seed``, of that one instead of the pass's. ``mix`` does the same by tokens, and can stop otherwise.

    State: a key and the number of draws, and which inputs have ended.

    Raises: ValueError for no inputs and for a weight that is not positive; TypeError for an input that is no node.
    """

    pairs = False
    seeded = True

    def __init__(self, pipes_to_weights_dict: Mapping[IterDataPipe[T], float], seed: int | None = None) -> None:
        if not pipes_to_weights_dict:
            raise ValueError("SampleMultiplexer needs at least one datapipe with its weight, got none")
        weights = {datapipe: plain(weight) for datapipe, weight in pipes_to_weights_dict.items()}
        for datapipe, weight in weights.items():
            check_input("SampleMultiplexer", datapipe)
            if (
                isinstance(weight, bool)
                or not isinstance(weight, int | float)
                or not weight > 0
                or not isfinite(weight)
            ):
                raise ValueError(f"a weight must be a positive number, got {weight!r} for {datapipe!r}")
        self.datapipes = tuple(pipes_to_weights_dict)
        self.weights = tuple(map(float, weights.values()))
        self.seed = None if seed is None else check_seed(seed)

    def __len__(self) -> int:
        return sum(len(datapipe) for datapipe in self.datapipes)

    def iterate(self, context: Context) -> NodeIterator[T]:
        key = context.stream_key(self)
        return _SampleIterator(self, context, key if self.seed is None else (self.seed, *key[1:]))


class _SampleIterator(NodeIterator[T]):
    node: SampleMultiplexer[T]

    def __init__(self, node: SampleMultiplexer[T], context: Context, key: StreamKey) -> None:
        super().__init__(node, context, *node.datapipes)
        self.random = IndexStream(key)
        self.open = list(range(len(self.inputs)))  # those that have not ended

    def get_state(self) -> dict[str, Any]:
        return {"random": self.random.state_dict(), "open": list(self.open)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.random.load_state_dict(state["random"])
        self.open = stored_items(state, "open", at_most=len(self.inputs))
        if not set(self.open) <= set(range(len(self.inputs))) or any(type(index) is not int for index in self.open):
            raise StateError(f"the state has inputs {self.open!r:.60} of {len(self.inputs)}")

    def run(self) -> Iterator[T]:
        while self.open:
            index = self._drawn() if len(self.open) > 1 else self.open[0]
            held = [next(self.inputs[index].items(), _END)]
            if held[0] is _END:
                self.open.remove(index)
            else:
                yield held.pop()

    def _drawn(self) -> int:
        weights = self.node.weights
        at = self.random.index(_FINE) / _FINE * sum(weights[index] for index in self.open)
        for index in self.open:
            at -= weights[index]
            if at < 0:
                return index
        return self.open[-1]  # rounding
