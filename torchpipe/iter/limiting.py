"""Nodes that say how many items there are, and how often they come.

- ``cycle``: read the input again and again.
- ``set_length``: say how many items there are.
- ``repeat``: every item several times in a row.
- ``skip``: all but the first items.
- ``take``: the first items alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

from torchpipe.errors import StateError
from torchpipe.indexed.selecting import SelectingIterator
from torchpipe.iter._shared.bases import OneInput
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator, Positions, stored_count
from torchpipe.node.traits import DataPipe, walk
from torchpipe.node.validate import check_count
from torchpipe.state.copying import copy_item

__all__ = ["Cycler", "LengthSetter", "Repeater", "Skipper", "Taker", "is_estimated"]

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


@functional_datapipe("set_length")
class LengthSetter(OneInput[T]):
    """Its input, with ``length`` as its ``len()``: for progress bars and schedules. It may be an estimate: nothing ends
    or is said to have ended because of it.

    State: none of its own. Raises: ValueError if ``length`` is negative.
    """

    alters_stream = False
    one_to_one = True
    selects = True

    def __init__(self, source_datapipe: IterDataPipe[T], length: int) -> None:
        super().__init__(source_datapipe)
        self.length = check_count("length", length, at_least=0)

    def __len__(self) -> int:
        return self.length

    def iterate(self, context: Context) -> NodeIterator[T]:
        return context.iterate(self.source)


def is_estimated(root: DataPipe) -> bool:
    """True if the length of the graph may be an estimate, which a user has set."""
    return any(isinstance(node, LengthSetter) for node in walk(root))


class _RepeatIterator(NodeIterator[T]):
    node: Repeater[T]
    keeps_items = True

    def __init__(self, node: Repeater[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.item: Any = None
        self.left = 0

    def get_state(self) -> dict[str, Any]:
        return {"left": self.left, "item": self.kept_items([self.item])[0]} if self.left else {"left": 0}

    def set_state(self, state: dict[str, Any]) -> None:
        self.left = stored_count(state, "left", at_most=self.node.times)
        self.item = copy_item(state["item"]) if self.left else None

    def run(self) -> Iterator[T]:
        yield from self._again()
        times = self.node.times
        for item in self.source.items():
            self.item, self.left = item, times
            yield from self._again()

    def _again(self) -> Iterator[T]:
        while self.left:
            self.left -= 1
            held = [copy_item(self.item) if self.left else self.item]
            if not self.left:
                self.item = None
            yield held.pop()


@functional_datapipe("repeat")
class Repeater(OneInput[T]):
    """Hands out every item ``times`` times in a row; to repeat whole passes use ``cycle``.

    All but the last are copies of the item as it came, of what can be changed in place: who changes one does not change
    the others.

    State: the item, while it is being repeated, and how often it is still to come.

    Raises: ValueError if ``times`` is below 1.
    """

    iterator = _RepeatIterator

    def __init__(self, source_datapipe: IterDataPipe[T], times: int) -> None:
        super().__init__(source_datapipe)
        self.times = check_count("times", times, at_least=1)

    def __len__(self) -> int:
        return self.times * len(self.source)


class _SkipIterator(SelectingIterator[T]):
    node: Skipper[T]
    saved = ("skipped",)
    skipped = 0

    def choose(self) -> Iterator[Any]:
        for item in self.source.items():
            if self.skipped < self.node.count:
                self.skipped += 1
            else:
                yield item


@functional_datapipe("skip")
class Skipper(OneInput[T]):
    """All items but the first ``count``. Of a source that is read by position those are not made.

    After ``sharding_filter`` each shard leaves out as many. To go on where a run stopped, load its state instead.

    State: the number of items left out.

    Raises: ValueError if ``count`` is negative.
    """

    iterator = _SkipIterator
    selects = True

    def __init__(self, source_datapipe: IterDataPipe[T], count: int) -> None:
        super().__init__(source_datapipe)
        self.count = check_count("count", count, at_least=0)

    def __len__(self) -> int:
        return max(0, len(self.source) - self.count)


class _TakeIterator(NodeIterator[T]):
    node: Taker[T]
    saved = ("count",)
    count = 0

    @property
    def by_position(self) -> Positions | None:
        found = self.source.by_position
        return None if found is None else replace(found, stride=None)

    def run(self) -> Iterator[T]:
        limit = self.node.limit
        if limit is None:
            yield from self.source.items()
            return
        if self.count >= limit:
            return
        for item in self.source.items():
            self.count += 1
            yield item
            if self.count >= limit:
                return


@functional_datapipe("take")
class Taker(OneInput[T]):
    """The first ``count`` items; no more than these are pulled from the input.

    State: the number of items handed out. The length is known only if that of the input is.

    Raises: ValueError if ``count`` is negative.
    """

    iterator = _TakeIterator
    selects = True

    def __init__(self, source_datapipe: IterDataPipe[T], count: int) -> None:
        super().__init__(source_datapipe)
        self.limit: int | None = check_count("count", count, at_least=0)  # None: all, for header()

    def __len__(self) -> int:
        length = len(self.source)
        return length if self.limit is None else min(length, self.limit)
