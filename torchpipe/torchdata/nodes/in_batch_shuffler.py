"""``in_batch_shuffle``: mix the order of the items within each batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from torchpipe.iter._shared.bases import CountingIterator, Switchable
from torchpipe.node.context import Context
from torchpipe.node.datapipe import DataChunk, IterDataPipe, functional_datapipe
from torchpipe.randomness.seeds import IndexStream

__all__ = ["InBatchShuffler"]

T = TypeVar("T")


class _InBatchIterator(CountingIterator[list[T]]):
    node: InBatchShuffler[T]

    def __init__(self, node: InBatchShuffler[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.random = IndexStream(node.random_key(context))

    def get_state(self) -> dict[str, Any]:
        return {"random": self.random.state_dict()} if self.node.enabled else {}

    def set_state(self, state: dict[str, Any]) -> None:
        self.node.check_switched(state)
        if self.node.enabled:
            self.random.load_state_dict(state["random"])

    def run(self) -> Iterator[list[T]]:
        if not self.node.enabled:
            yield from self.source.items()
            return
        index = self.random.index
        for batch in self.source.items():
            mixed = DataChunk(batch)
            for at in range(len(mixed) - 1, 0, -1):  # Fisher and Yates
                other = index(at + 1)
                mixed[at], mixed[other] = mixed[other], mixed[at]
            del batch
            yield mixed
            del mixed


@functional_datapipe("in_batch_shuffle")
class InBatchShuffler(Switchable[list[T]]):
    """Hands on each batch with its items in random order, as a ``DataChunk``; every order has the same chance.

    State: a key and the number of draws.
    """

    iterator = _InBatchIterator

    def __init__(self, datapipe: IterDataPipe[Sequence[T]]) -> None:
        super().__init__(datapipe)

    def __len__(self) -> int:
        return len(self.source)
