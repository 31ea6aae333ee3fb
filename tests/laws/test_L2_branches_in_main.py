"""L2 where branches meet in the user's process, and one of them is made again from a snapshot as a state is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import pytest

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2, InProcessReadingService, NodeIterator
from torchpipe.iter import IterableWrapper, IterDataPipe
from torchpipe.state import SnapshotPolicy


class _Numbering(NodeIterator[Any]):
    saved = ("count",)
    count = 0

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            self.count += 1
            yield item, self.count


class NumberedInMain(IterDataPipe[Any]):
    """A node of the user's with a state, in the user's process: the shards stand behind what it has counted."""

    iterator = _Numbering
    runs_in_main = True

    def __init__(self, source: Any) -> None:
        self.source = source


def numbers(first: int, count: int) -> Any:
    return IterableWrapper(range(first, first + count)).sharding_filter()


def ahead(count: int = 5) -> Any:
    return NumberedInMain(numbers(0, count)).to_device("cpu", prefetch=1, host_prefetch=1)


GRAPHS: dict[str, Callable[[], Any]] = {
    "mix": lambda: ahead().mix(numbers(100, 4), weights=[1, 1]),
    "mix, the other way round": lambda: numbers(100, 4).mix(ahead(), weights=[1, 1], stop="all_exhausted"),
    "zip": lambda: ahead().zip(numbers(100, 5).shuffle(buffer_size=2)),
    "two that run ahead": lambda: ahead().mix(ahead(3), numbers(100, 3), weights=[2, 1, 1], stop="all_exhausted"),
}


def loader(kind: str, workers: int, every: int) -> DataLoader2[Any]:
    policy = partial(SnapshotPolicy, every=every)
    service: Any = (
        MultiProcessingReadingService(workers, num_shards=2, policy=policy)
        if workers
        else InProcessReadingService(num_shards=2, policy=policy)
    )
    made: DataLoader2[Any] = DataLoader2(GRAPHS[kind](), reading_service=service)
    made.seed(5)
    return made


@pytest.mark.parametrize(("workers", "every"), [(0, 1), (0, 2), (0, 5), (1, 5)])
@pytest.mark.parametrize("kind", GRAPHS)
def test_L2_each_branch_goes_on_where_it_stood(kind: str, workers: int, every: int) -> None:
    with loader(kind, 0, 1) as whole:
        epochs = [list(whole) for _ in range(2)]
    cuts = range(len(epochs[0]) + 1) if not workers else [2, len(epochs[0])]
    for cut in cuts:
        with loader(kind, workers, every) as first:
            stream = iter(first)
            head = list(islice(stream, cut))
            state = first.state_dict()
        with loader(kind, 0, every) as other:
            other.load_state_dict(state)
            assert [head + list(other), list(other)] == epochs, cut
