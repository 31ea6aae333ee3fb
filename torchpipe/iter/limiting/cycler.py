"""``cycle``: read the input again and again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, TypeVar

from torchpipe.errors import StateError
from torchpipe.iter._shared.bases import OneInput
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator, stored_count
from torchpipe.node.validate import check_count

__all__ = ["Cycler"]

T = TypeVar("T")


class _CycleIterator(NodeIterator[T]):
    node: Cycler[T]

    def __init__(self, node: Cycler[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context)
        self._enter(0)

    def _enter(self, number: int) -> None:
        """Begin a round: a new pass over the input, in a context of its own."""
        for item in self.inputs:
            self.end_pass(item)
        self.round = number
        self.found = False  # True once this round has given an item
        self.inputs = (self.context.for_round(number).iterate(self.node.source),)

    def get_state(self) -> dict[str, Any]:
        return {"round": self.round, "found": self.found}

    def set_state(self, state: dict[str, Any]) -> None:
        most = None if self.node.count is None else max(0, self.node.count - 1)
        self._enter(stored_count(state, "round", at_most=most))
        self.found = state["found"]
        if type(self.found) is not bool or (self.round and not self.found and self.node.count is None):
            raise StateError(
                f"cycle() is saved after an item of its round, and the state has none of round {self.round}"
            )

    def run(self) -> Iterator[T]:
        count = self.node.count
        for number in itertools.count(self.round) if count is None else range(self.round, count):
            if number != self.round:
                self._enter(number)
            for item in self.source.items():
                self.found = True
                yield item
            if not self.found and count is None:
                raise RuntimeError(
                    f"cycle() read its input to the end in round {number} and found no item: it would turn for ever. "
                    f"Does shard {self.context.shard} of {self.context.num_shards} get any?"
                )


@functional_datapipe("cycle")
class Cycler(OneInput[T]):
    """Reads its input ``count`` times in a row, or for ever if ``count`` is None.

    Every round is a new pass over everything upstream: it shuffles and augments anew.

    State: the number of the round.

    Raises: ValueError if ``count`` is negative; RuntimeError, while iterating, if an endless cycle finds nothing in its
    input (too few items for this shard, or a filter that keeps none).
    """

    iterator = _CycleIterator

    def __init__(self, source_datapipe: IterDataPipe[T], count: int | None = None) -> None:
        super().__init__(source_datapipe)
        self.count = None if count is None else check_count("count", count, at_least=0)

    def __len__(self) -> int:
        if self.count is None:
            raise TypeError("cycle() without a count never ends, so it has no length")
        return self.count * len(self.source)
