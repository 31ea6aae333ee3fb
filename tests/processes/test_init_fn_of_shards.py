"""What ``worker_init_fn`` and ``worker_reset_fn`` set in a graph is their shard's, whichever others a process hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reading_services import InProcessReadingService, MultiProcessingReadingService
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper, IterDataPipe

SHARDS = 2


class Tagged(IterDataPipe[Any]):
    def __init__(self, source: IterDataPipe[Any]) -> None:
        self.source, self.mine, self.seen = source, -1, list[int]()

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            yield item, self.mine, tuple(self.seen)


class Tag:
    mine = -1

    def __call__(self, item: int) -> Any:
        return item, self.mine


def set_in_node(node: Any, info: Any, *_: Any) -> Any:
    node.mine = info.worker_id
    node.seen.append(info.worker_id)
    return node


def set_in_function(node: Any, info: Any, *_: Any) -> Any:
    node.fn.mine = info.worker_id
    return node


GRAPHS: dict[str, tuple[Callable[[], Any], Any]] = {
    "node": (lambda: Tagged(IterableWrapper(range(12)).sharding_filter()), set_in_node),
    "function": (lambda: IterableWrapper(range(12)).sharding_filter().map(Tag()), set_in_function),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("kind", ["init", "reset"])
@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
def test_L1_it_is_the_same_for_any_number_of_workers(name: str, kind: str) -> None:
    make, fn = GRAPHS[name]

    def epochs(workers: int) -> list[list[Any]]:
        service: Any = InProcessReadingService(num_shards=SHARDS, **{f"{kind}_fn": fn})
        if workers:
            service = MultiProcessingReadingService(workers, num_shards=SHARDS, **{f"worker_{kind}_fn": fn})
        with DataLoader2(make(), reading_service=service) as loader:
            return [list(loader) for _ in range(2)]

    expected = epochs(2)
    assert [item[1] for item in expected[1]] == [0, 1] * 6
    assert epochs(1) == epochs(0) == expected
