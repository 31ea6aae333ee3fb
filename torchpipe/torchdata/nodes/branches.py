"""Several streams into one, and one into several.

- ``round_robin_demux``: items for several branches in turn.
- ``SampleMultiplexer``: items of several inputs, drawn by weight.
- ``unzip``: a branch for each column of the items, of one pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, TypeVar

from torchpipe.errors import StateError
from torchpipe.iter._shared.shared_pass import Container
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.function_results import plain
from torchpipe.node.iterator import NodeIterator, stored_items
from torchpipe.node.user_warnings import warn_user
from torchpipe.node.validate import check_count, check_input, columns_left
from torchpipe.randomness.seeds import IndexStream, StreamKey, check_seed
from torchpipe.state.copying import separated

__all__ = ["RoundRobinDemultiplexer", "SampleMultiplexer", "UnZipper"]

T = TypeVar("T")


@functional_datapipe("round_robin_demux")
class RoundRobinDemultiplexer(IterDataPipe[T]):
    """``num_instances`` branches that get the items of the input in turn.

    The input is read once for all branches; items that come before their branch asks for them wait in a buffer of
    ``buffer_size`` items for all branches together (-1: any number, with a warning). The branches meet again in one
    graph, as those of ``fork``.

    State: the items in the buffer and the input's state, once.

    Raises: ValueError for a ``num_instances`` below 1 and a ``buffer_size`` below -1; while iterating, BufferError
    before the buffer would overflow.
    """

    def __new__(  # type: ignore[misc]
        cls, datapipe: IterDataPipe[T], num_instances: int, buffer_size: int = 1000
    ) -> list[IterDataPipe[T]]:
        check_input("round_robin_demux", datapipe)
        if check_count("num_instances", num_instances, at_least=1) == 1:
            warn_user("round_robin_demux(1) is the datapipe itself, in a list: is that meant?", UserWarning)
            return [datapipe]
        return _RoundRobin(datapipe, num_instances, buffer_size).branches()


class _RoundRobin(Container):
    form = "round_robin_demux"
    in_step = False

    def length_of(self, branch: int) -> int:
        full, rest = divmod(len(self.source), self.num_instances)
        return full + (branch < rest)

    def deal(self, item: Any, number: int, fn: Any, branches: Collection[int]) -> Iterable[tuple[int, Any]]:
        return ((number % self.num_instances, item),)


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


@functional_datapipe("unzip")
class UnZipper(IterDataPipe[T]):
    """Takes sequences of ``sequence_length`` values, and makes a branch for each position in them: all first values,
    all second ones, and so on, but for the positions ``columns_to_skip``.

    The input is read once for all branches; what one has read and another has not waits in a buffer of ``buffer_size``
    values for each (-1: any number, with a warning). The branches meet again in one graph, as those of ``fork``.

    State: the values in the buffer and the input's state, once.

    Raises: ValueError for arguments out of range, and if no column is left; while iterating, BufferError before the
    buffer would overflow, ValueError for an item of another length.
    """

    def __new__(  # type: ignore[misc]
        cls,
        source_datapipe: IterDataPipe[Sequence[T]],
        sequence_length: int,
        buffer_size: int = 1000,
        columns_to_skip: Sequence[int] | None = None,
    ) -> list[IterDataPipe[T]]:
        check_input("unzip", source_datapipe)
        sequence_length = check_count("sequence_length", sequence_length, at_least=1)
        columns = columns_left(sequence_length, columns_to_skip)
        return _UnZipper(source_datapipe, sequence_length, buffer_size, columns).branches()


class _UnZipper(Container):
    form = "unzip"

    def __init__(
        self, datapipe: IterDataPipe[Any], sequence_length: int, buffer_size: int, columns: tuple[int, ...]
    ) -> None:
        super().__init__(datapipe, len(columns), buffer_size)
        self.sequence_length = sequence_length
        self.columns = columns

    def deal(self, item: Any, number: int, fn: Any, branches: Collection[int]) -> Iterable[tuple[int, Any]]:
        if not hasattr(item, "__len__"):
            raise TypeError(
                f"unzip(sequence_length={self.sequence_length}) takes sequences, got item {number} of type "
                f"{type(item).__name__}: {item!r:.200}"
            )
        if len(item) != self.sequence_length:
            raise ValueError(
                f"unzip(sequence_length={self.sequence_length}) got item {number} of length {len(item)}: {item!r:.200}"
            )
        read = list(branches)
        return list(zip(read, separated([item[self.columns[branch]] for branch in read])))
