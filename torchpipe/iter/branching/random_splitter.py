"""``random_split``: the items of a stream dealt to several parts, the same in every epoch."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Mapping
from math import isfinite
from typing import Any, Self, TypeVar, overload

from torchpipe.errors import GraphError, StateError
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator, stored_count, stored_items
from torchpipe.node.traits import DataPipe, divides, node_name, seeded, traits_of, walk
from torchpipe.node.validate import check_count, check_input

__all__ = ["RandomSplitter"]

T = TypeVar("T")


@functional_datapipe("random_split")
class RandomSplitter(IterDataPipe[T]):
    """Deals the items of the input to parts, one for each key of ``weights``, by chance: which item goes to which part
    is a function of ``seed`` alone, and the same as torchdata 0.9's.

    Each part reads the input for itself, in a pass of its own, so the input has to give the same items in the same
    order every time: in every epoch, for every seed, and under any number of workers. Nodes that do not are refused
    before the split (``shuffle``, ``mix``, ``sharding_filter``): put them behind it, one for each part. Functions of
    yours that order or drop items by chance are not seen: keep them behind the split, too.

    ``total_length`` is the number of items, by default ``len()`` of the input. Weights that are whole numbers and add
    up to it are the lengths of the parts. The result is a list of the parts, or with ``target`` the one of that key.

    State: the numbers that the next item's part is drawn from.

    Raises: GraphError for a node of that kind before the split; TypeError without a known length; ValueError for
    weights that are negative or sum to nothing; KeyError for a ``target`` that has no weight.
    """

    @overload
    def __new__(  # type: ignore[misc]
        cls,
        source_datapipe: IterDataPipe[T],
        weights: Mapping[Any, float],
        seed: Any,
        total_length: int | None = None,
        target: None = None,
    ) -> list[IterDataPipe[T]]: ...
    @overload
    def __new__(  # type: ignore[misc]
        cls,
        source_datapipe: IterDataPipe[T],
        weights: Mapping[Any, float],
        seed: Any,
        total_length: int | None = None,
        *,
        target: Hashable,
    ) -> IterDataPipe[T]: ...

    def __new__(  # type: ignore[misc]
        cls,
        source_datapipe: IterDataPipe[T],
        weights: Mapping[Any, float],
        seed: Any,
        total_length: int | None = None,
        target: Any = None,
    ) -> list[IterDataPipe[T]] | IterDataPipe[T]:
        check_input("random_split", source_datapipe)
        _check_fixed(source_datapipe)
        if total_length is None:
            try:
                total_length = len(source_datapipe)
            except (TypeError, NotImplementedError):
                raise TypeError(
                    f"RandomSplitter needs `total_length`, as {source_datapipe!r} does not know its length"
                ) from None
        splitter = _Splitter(source_datapipe, check_count("total_length", total_length, at_least=0), weights, seed)
        if target is None:
            return [_Part(splitter, key) for key in splitter.keys]
        if target not in splitter.keys:
            raise KeyError(f"target={target!r} has no weight: {list(splitter.keys)!r:.200} have one")
        return _Part(splitter, target)


def _check_fixed(source: DataPipe) -> None:
    """Raises: GraphError for a node that may give other items, or another order, in another pass."""
    for node in walk(source):
        if seeded(node):
            raise GraphError(
                f"random_split cannot stand behind {node_name(node)}, whose order is another for each seed and epoch: "
                "each part would deal another order, and an item could come in several parts (in training and in "
                "validation) or in none. Split first and put it behind each part: "
                "train, valid = source.random_split(...); train = train.shuffle()"
            )
        if divides(node) or traits_of(node).dispatches:
            raise GraphError(
                f"random_split cannot stand behind {node_name(node)}: each shard would deal its own items, so that two "
                "loaders with different numbers of workers have the same item in several parts. Split first and put it "
                "behind each part"
            )


class _Splitter(IterDataPipe[Any]):
    """The base of the parts."""

    node_title = "random_split()"

    def __init__(
        self, source_datapipe: IterDataPipe[Any], total_length: int, weights: Mapping[Any, float], seed: Any
    ) -> None:
        self.source = source_datapipe
        self.total_length = total_length
        self.keys = tuple(weights)
        values = [float(weight) for weight in weights.values()]
        if not all(isfinite(value) and value >= 0 for value in values) or not sum(values) > 0:
            raise ValueError(f"weights must be numbers from 0 on, not all of them 0, got {dict(weights)!r:.200}")
        self.weights = tuple(value * total_length / sum(values) for value in values)
        self.seed = seed
        random.Random(seed)  # what it cannot be made of is an error here

    def length_of(self, key: Hashable) -> int:
        if not all(weight.is_integer() for weight in self.weights) or sum(self.weights) != self.total_length:
            raise TypeError(
                "the lengths of the parts are not known: give weights that are whole numbers and add up to "
                "total_length, or call set_length()"
            )
        return int(self.weights[self.keys.index(key)])

    def iterate(self, context: Context) -> NodeIterator[Any]:
        raise TypeError("random_split is read by its parts")


class _Part(IterDataPipe[Any]):
    node_title = "a part of random_split()"

    def __init__(self, main_datapipe: _Splitter, target: Hashable) -> None:
        self.source = main_datapipe
        self.target = target

    def override_seed(self, seed: Any) -> Self:
        """Use another seed, from the next pass on; it changes the node, and all parts with it."""
        self.source.seed = seed
        return self

    def __len__(self) -> int:
        return self.source.length_of(self.target)

    def iterate(self, context: Context) -> NodeIterator[Any]:
        return _PartIterator(self, context)


class _PartIterator(NodeIterator[Any]):
    node: _Part

    def __init__(self, node: _Part, context: Context) -> None:
        super().__init__(node, context, node.source.source)
        self.random = random.Random(node.source.seed)
        self.weights = list(node.source.weights)  # what is left of them
        self.left = node.source.total_length  # items

    def get_state(self) -> dict[str, Any]:
        version, words, gauss = self.random.getstate()
        return {"random": [version, list(words), gauss], "weights": list(self.weights), "left": self.left}

    def set_state(self, state: dict[str, Any]) -> None:
        version, words, gauss = state["random"]
        self.weights = stored_items(state, "weights")
        splitter = self.node.source
        if len(self.weights) != len(splitter.weights) or not all(
            type(weight) is float and isfinite(weight) and weight >= 0 for weight in self.weights
        ):
            raise StateError(f"random_split has {len(splitter.weights)} weights, not those of the state")
        self.left = stored_count(state, "left", at_most=splitter.total_length)
        if abs(sum(self.weights) - self.left) > 1e-6 * splitter.total_length:
            raise StateError(f"{self.left} items are left to random_split, and weights of {sum(self.weights):g}")
        self.random.setstate((version, tuple(words), gauss))

    def run(self) -> Iterator[Any]:
        keys, target = self.node.source.keys, self.node.target
        for item in self.source.items():
            if self.left == 0:
                raise ValueError(
                    f"random_split was told of {self.node.source.total_length} items, and its input has more: "
                    "pass the right total_length"
                )
            index = self.random.choices(range(len(keys)), self.weights)[0]
            self.weights[index] -= 1
            self.left -= 1
            if self.weights[index] < 0:  # a fraction was left of it
                self.weights[index] = 0.0
                total = sum(self.weights)
                self.weights = [weight * self.left / total for weight in self.weights] if total else self.weights
            if keys[index] == target:
                yield item
