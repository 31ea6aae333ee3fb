"""``torch.manual_seed`` fixes loaders and ``iter(node)`` that have no seed, in scripts as people write them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from reading_services import MultiProcessingReadingService
from tests.warm import Warm
from torchpipe import DataLoader2, InProcessReadingService, IterDataPipe
from torchpipe.iter import IterableWrapper

HEAD = """
import json, random, sys
import numpy as np, torch
from reading_services import DistributedReadingService, MultiProcessingReadingService
from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.iter import IterableWrapper

def augment(item):
    return item, random.random(), float(np.random.rand()), float(torch.rand(()))

graph = IterableWrapper(range(12)).shuffle().sharding_filter().map(augment)
"""

STREAMS = """
def epochs(service):
    with DataLoader2(graph, reading_service=service) as loader:
        return [list(loader) for _ in range(2)]

if __name__ == "__main__":
    if len(sys.argv) > 1:
        torch.manual_seed(int(sys.argv[1]))
    order = IterableWrapper(range(9)).shuffle()
    print(json.dumps({"iter(node)": [list(order) for _ in range(2)], "default": epochs(None)}))
    if len(sys.argv) > 1:
        for service in (InProcessReadingService(num_shards=2), MultiProcessingReadingService(2)):
            torch.manual_seed(int(sys.argv[1]))
            print(json.dumps(epochs(service)))
"""


def run(warm: Warm, body: str, tmp_path: Path, *args: object) -> list[Any]:
    path = tmp_path / "script.py"
    path.write_text(HEAD + body)
    done = warm.run([str(path), *map(str, args)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("[[", "{"))]


def test_L1_a_script_with_manual_seed_gives_the_same_streams_again(warm: Warm, tmp_path: Path) -> None:
    first = run(warm, STREAMS, tmp_path, 7)
    assert len(first) == 3
    assert first[1] == first[2]  # in process as with workers
    assert first[1][0] != first[1][1]
    assert run(warm, STREAMS, tmp_path, 7) == first
    without = run(warm, STREAMS, tmp_path)[0]  # torch itself seeds anew in every process
    assert without["iter(node)"] != first[0]["iter(node)"]
    assert without["default"] != first[0]["default"]


def test_L1_ranks_share_the_seed_that_rank_0_draws(warm: Warm, tmp_path: Path) -> None:
    body = """
import torch.distributed as dist
import torch.multiprocessing as mp

def rank(number, base, queue):
    dist.init_process_group("gloo", init_method=f"file://{base}", rank=number, world_size=2)
    torch.manual_seed(100 if number == 0 else int(sys.argv[2]))
    loader = DataLoader2(IterableWrapper(range(12)).shuffle().sharding_filter(),
                         reading_service=DistributedReadingService())
    queue.put((number, list(loader)))
    loader.shutdown()

if __name__ == "__main__":
    context = mp.get_context("fork")
    queue = context.SimpleQueue()
    ranks = [context.Process(target=rank, args=(number, sys.argv[1], queue)) for number in range(2)]
    [process.start() for process in ranks]
    told = sorted(queue.get() for _ in ranks)
    [process.join() for process in ranks]
    print(json.dumps(told))
"""
    told = run(warm, body, tmp_path, tmp_path / "one", 200)[-1]
    assert sorted(item for _, items in told for item in items) == list(range(12))
    assert run(warm, body, tmp_path, tmp_path / "two", 300)[-1] == told


def graph() -> Any:
    return IterableWrapper(range(20)).shuffle()


def draws_since(seed: int) -> int:
    """How many seeds were drawn since ``torch.manual_seed(seed)``."""
    now = torch.get_rng_state()
    torch.manual_seed(seed)
    for count in range(9):
        if torch.equal(torch.get_rng_state(), now):
            return count
        torch.empty((), dtype=torch.int64).random_()
    raise AssertionError("something else was drawn")


def test_one_draw_when_first_iterated_and_none_later() -> None:
    torch.manual_seed(5)
    loader = DataLoader2(graph())
    assert draws_since(5) == 0
    epochs = [list(loader), list(loader)]
    assert draws_since(5) == 1
    torch.manual_seed(5)
    assert [list(loader), list(loader)] != epochs  # the run goes on
    again = DataLoader2(graph())
    torch.manual_seed(5)
    assert [list(again), list(again)] == epochs
    torch.manual_seed(5)
    iter(DataLoader(range(3)))  # type: ignore[arg-type, call-overload]
    assert draws_since(5) == 1  # as torch's own


def test_nothing_is_drawn_with_a_seed_or_a_loaded_state() -> None:
    torch.manual_seed(5)
    loader = DataLoader2(graph())
    loader.seed(1)
    items = list(loader)
    loader.set_epoch(0)
    stream = iter(loader)
    next(stream)
    state = loader.state_dict()
    other = DataLoader2(graph())
    other.load_state_dict(state)
    assert list(other) == items[1:]
    list(other)
    assert draws_since(5) == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_L2_a_state_before_the_first_item_draws_nothing_and_holds(workers: int) -> None:
    def make() -> DataLoader2[int]:
        node = graph().sharding_filter()
        if workers:
            return DataLoader2(node, reading_service=MultiProcessingReadingService(workers))
        return DataLoader2(node, reading_service=InProcessReadingService(num_shards=2))

    torch.manual_seed(5)
    with make() as loader:
        state = loader.state_dict()
        assert draws_since(5) == 0
        torch.manual_seed(5)
        items = list(loader)
        assert draws_since(5) == 1
    torch.manual_seed(5)
    with make() as undisturbed:
        assert list(undisturbed) == items
    with make() as loader:
        assert loader.state_dict() == loader.state_dict()
        torch.rand(3)  # the state told what the seed is going to be
        state_then = loader.state_dict()
        items_then = list(loader)
    for saved, expected in ((state, items), (state_then, items_then)):
        with make() as resumed:
            resumed.load_state_dict(saved)
            assert list(resumed) == expected


def test_iter_of_a_node_is_another_pass_each_time() -> None:
    torch.manual_seed(5)
    node = graph()
    first, second = list(node), list(node)
    assert first != second
    torch.manual_seed(5)
    assert [list(node), list(node)] == [first, second]


class Nested(IterDataPipe[list[int]]):
    """Makes passes over a graph that is no input, inside a pass."""

    def __iter__(self) -> Any:
        for _ in range(4):
            yield list(IterableWrapper(range(9)).shuffle())


def nested(item: int) -> list[int]:
    return list(IterableWrapper(range(9)).shuffle())


@pytest.mark.parametrize(
    "make",
    [lambda: Nested().sharding_filter(), lambda: IterableWrapper(range(4)).sharding_filter().map(nested)],
)
def test_L1_passes_inside_a_shard_draw_from_the_shards_own_generator(make: Any) -> None:
    streams = []
    for service in (InProcessReadingService(num_shards=2), MultiProcessingReadingService(2)):
        torch.manual_seed(5)
        random.seed(0)
        np.random.seed(0)
        with DataLoader2(make(), reading_service=service) as loader:
            streams.append([list(loader), list(loader)])
        assert draws_since(5) == 1
    assert streams[0] == streams[1]
    assert len({str(item) for epoch in streams[0] for item in epoch}) == 8
