"""One stream into several.

- ``demux``: every item for one of several branches.
- ``fork``: the same items for several branches, of one pass.
- ``random_split``: the items of a stream dealt to several parts, the same in every epoch.
"""

from __future__ import annotations

import copy as copying
import operator
import random
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, Literal, Self, TypeVar, overload

from torchpipe.errors import GraphError, StateError
from torchpipe.formats.storage.streams import close_streams
from torchpipe.iter._shared.shared_pass import Container
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.function_results import plain
from torchpipe.node.iterator import NodeIterator, stored_count, stored_items
from torchpipe.node.traits import DataPipe, callable_name, divides, node_name, seeded, traits_of, walk
from torchpipe.node.validate import check_columns, check_count, check_input
from torchpipe.state.copying import copy_item

__all__ = ["Demultiplexer", "Forker", "RandomSplitter"]

T = TypeVar("T")


@functional_datapipe("demux")
class Demultiplexer(IterDataPipe[T]):
    """``num_instances`` branches, to which ``classifier_fn`` deals the items of the input: it returns a branch's
    number.

    The input is read once for all branches; items that come before their branch asks for them wait in a buffer of
    ``buffer_size`` items for all branches together (-1: any number, with a warning). Items of branches that nothing in
    the graph reads are left out, and so are those for which the function returns None, with ``drop_none``. The branches
    meet again in one graph, as those of ``fork``.

    State: the items in the buffer and the input's state, once; that of ``classifier_fn`` if it has any.

    Raises: ValueError for a ``num_instances`` below 1 and a ``buffer_size`` below -1, TypeError if ``classifier_fn`` is
    no function; while iterating, ValueError for a number without a branch, BufferError before the buffer would
    overflow.
    """

    def __new__(  # type: ignore[misc]
        cls,
        datapipe: IterDataPipe[T],
        num_instances: int,
        classifier_fn: Callable[[T], int | None],
        drop_none: bool = False,
        buffer_size: int = 1000,
    ) -> list[IterDataPipe[T]]:
        check_input("demux", datapipe)
        check_columns("classifier_fn", classifier_fn, None)
        return _Demultiplexer(datapipe, num_instances, classifier_fn, drop_none, buffer_size).branches()


class _Demultiplexer(Container):
    form = "demux"
    in_step = False

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        num_instances: int,
        classifier_fn: Callable[[Any], int | None],
        drop_none: bool,
        buffer_size: int,
    ) -> None:
        super().__init__(datapipe, num_instances, buffer_size)
        self.classifier_fn = classifier_fn
        self.drop_none = drop_none

    def length_of(self, branch: int) -> int:
        raise TypeError("how many items demux() deals to each branch is not known")

    def function(self) -> Any:
        return self.classifier_fn

    def deal(self, item: Any, number: int, fn: Any, branches: Collection[int]) -> Iterable[tuple[int, Any]]:
        answer = plain(fn(item))
        if answer is None and self.drop_none:
            close_streams(item)
            return ()
        try:
            branch = operator.index(answer)
        except TypeError:
            branch = -1
        if not 0 <= branch < self.num_instances:
            hint = ": pass drop_none=True to leave these items out" if answer is None else ""
            raise ValueError(
                f"{callable_name(self.classifier_fn)} must return a number between 0 and {self.num_instances - 1}, "
                f"{answer!r} is returned for item {number}{hint}"
            )
        return ((branch, item),)


@functional_datapipe("fork")
class Forker(IterDataPipe[T]):
    """``num_instances`` branches that all yield the items of the input, which is read once for all of them.

    What one branch has read and another has not waits in a buffer of ``buffer_size`` items (-1: any number, with a
    warning). Branches that nothing in the graph reads do not count. One branch is the input itself.

    Each branch gets items of its own, so that none sees what another changes in place: the last one to read an item
    gets it itself, the others copies, of what can be changed. ``copy="deep"`` makes copies by ``copy.deepcopy`` for
    all; ``"shallow"`` copies containers, not what is in them; ``"same"`` hands out the same object to all, for large
    items that nobody changes.

    The branches meet again in one graph (``zip``, ``mux``): ``iter()`` of each alone is a pass of its own. They have to
    meet before what is dispatched, or runs in the main process.

    State: the items in the buffer and the input's state, once.

    Raises: ValueError for a ``num_instances`` below 1, a ``buffer_size`` below -1 and another ``copy``; while
    iterating, BufferError before the buffer would overflow.
    """

    def __new__(  # type: ignore[misc]
        cls,
        datapipe: IterDataPipe[T],
        num_instances: int,
        buffer_size: int = 1000,
        copy: Literal["shallow", "deep", "same"] | None = None,
    ) -> list[IterDataPipe[T]]:
        check_input("fork", datapipe)
        if copy not in (None, "shallow", "deep", "same"):
            raise ValueError(f"copy must be None, 'shallow', 'deep' or 'same', got {copy!r}")
        if check_count("num_instances", num_instances, at_least=1) == 1:
            return datapipe  # type: ignore[return-value]  # as torch has it
        return _Forker(datapipe, num_instances, buffer_size, copy).branches()


class _Forker(Container):
    form = "fork"
    alike = True

    def __init__(self, datapipe: IterDataPipe[Any], num_instances: int, buffer_size: int, copy: str | None) -> None:
        super().__init__(datapipe, num_instances, buffer_size)
        self.copy = copy

    def deal(self, item: Any, number: int, fn: Any, branches: Collection[int]) -> Iterable[tuple[int, Any]]:
        return [(branch, item) for branch in branches]

    def hand_out(self, value: Any, waits: bool) -> Any:
        if self.copy is None:
            return copy_item(value) if waits else value
        if self.copy == "same":
            return value
        return copying.deepcopy(value) if self.copy == "deep" else copying.copy(value)


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
