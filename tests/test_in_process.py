"""In process, an item is made when it is asked for: exact at every position, and never ahead of the consumer."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2, InProcessReadingService, IterDataPipe, NodeIterator
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper
from torchpipe.node.user_code import runs_users_code
from torchpipe.state import SnapshotPolicy


def noisy(item: int) -> tuple[Any, ...]:
    return item, random.random(), random.gauss(0, 1), float(np.random.randn()), float(torch.randn(()))


class Summing:
    """A function with state of its own."""

    def __init__(self) -> None:
        self.sum = 0

    def __call__(self, item: int) -> tuple[int, int]:
        self.sum += item
        return item, self.sum

    def state_dict(self) -> dict[str, Any]:
        return {"sum": self.sum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sum = state["sum"]


GRAPHS: dict[str, Callable[[], Any]] = {
    "draws": lambda: IterableWrapper(range(40)).shuffle(buffer_size=7).sharding_filter().map(noisy),
    "state": lambda: IterableWrapper(range(40)).sharding_filter().map(Summing()).batch(3),
    "uneven": lambda: (
        IterableWrapper(range(40)).sharding_filter().filter(lambda item: item % 4 != 0 or item > 30).map(noisy)
    ),
    "dispatched": lambda: IterableWrapper(range(40)).map(noisy).sharding_round_robin_dispatch().map(noisy_again),
}


def noisy_again(item: Any) -> Any:
    return item, random.random(), float(np.random.randn())


def always() -> SnapshotPolicy:
    return SnapshotPolicy(every=1)


def rarely() -> SnapshotPolicy:
    return SnapshotPolicy(every=10**9)


def loader(make: Callable[[], Any], num_shards: int, **options: Any) -> DataLoader2[Any]:
    made: DataLoader2[Any] = DataLoader2(
        make(), reading_service=InProcessReadingService(num_shards=num_shards, **options)
    )
    made.seed(3)
    return made


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)
def test_L2_exact_at_every_position(make: Callable[[], Any], num_shards: int) -> None:
    expected = list(loader(make, num_shards, policy=always))
    for policy in (SnapshotPolicy, rarely):
        going = loader(make, num_shards, policy=policy)
        stream = iter(going)
        for position in range(len(expected) + 1):
            random.random(), np.random.randn(), torch.rand(())  # the user's own draws
            resumed = loader(make, num_shards, policy=policy)
            resumed.load_state_dict(going.state_dict())
            if position < len(expected):
                assert list(resumed) == expected[position:]
                assert next(stream) == expected[position]
        assert next(stream, None) is None


def test_L1_as_with_workers() -> None:
    for make in GRAPHS.values():
        with DataLoader2(make(), reading_service=MultiProcessingReadingService(2, num_shards=3)) as workers:
            workers.seed(3)
            assert list(workers) == list(loader(make, 3))


def test_the_users_random_states_are_their_own() -> None:
    def draws() -> tuple[Any, ...]:
        return random.gauss(0, 1), float(np.random.randn()), float(torch.randn(()))

    def seed() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    seed()
    expected = [draws() for _ in range(40)]
    seed()
    items = []
    for item, draw in zip(loader(GRAPHS["draws"], 1), expected, strict=True):
        assert draws() == draw
        items.append(item)
    assert items == list(loader(GRAPHS["draws"], 1))


class Noting:
    """Notes the items it is called with, which no copy forgets."""

    calls: list[int] = []

    def __init__(self) -> None:
        Noting.calls = []

    def __call__(self, item: int) -> int:
        Noting.calls.append(item)
        return item


def test_an_item_is_made_when_it_is_asked_for() -> None:
    stream = iter(loader(lambda: IterableWrapper(range(20)).map(Noting()), 1))
    for count, _ in enumerate(stream, 1):
        assert len(Noting.calls) == count


class Fed(IterDataPipe[int]):
    """Gets its items from whoever consumes them."""

    basket: list[int] = []

    def __iter__(self) -> Iterator[int]:
        yield from fed(0)


def fed(_: object) -> Iterator[int]:
    for _ in range(30):
        if not Fed.basket:
            raise RuntimeError("asked before the consumer has fed it: waiting would be for ever")
        yield Fed.basket.pop()


@pytest.mark.parametrize(
    "make",
    [
        Fed,
        lambda: Fed().map(noisy).map(lambda item: item[0]),
        lambda: IterableWrapper(fed(0)),
        lambda: IterableWrapper([0]).flatmap(fed),
        lambda: IterableWrapper([0]).flatmap(fed).sharding_round_robin_dispatch().map(int),
    ],
)
def test_L7_nothing_runs_ahead_of_a_source_that_waits_for_the_consumer(make: Callable[[], Any]) -> None:
    stream = iter(loader(make, 1))
    for number in range(30):
        Fed.basket = [number]
        assert next(stream) == number
    assert next(stream, None) is None


@pytest.mark.parametrize("kind", [ValueError, StopIteration, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("at", [0, 1, 5])
def test_L7_an_exception_in_the_midst(kind: type[BaseException], at: int) -> None:
    broken = [True]

    def breaks(item: int) -> tuple[Any, ...]:
        made = noisy(item)
        if item == at and broken:
            raise kind("here")
        return made

    going = loader(lambda: IterableWrapper(range(20)).map(breaks), 1)
    got: list[Any] = []
    with pytest.raises(RuntimeError if kind is StopIteration else kind):
        got.extend(going)  # item by item
    if issubclass(kind, Exception):
        assert [item[0] for item in got] == list(range(at))  # in its place; an interrupt comes at once
    broken.clear()
    going.load_state_dict(going.state_dict())
    assert got + list(going) == list(loader(lambda: IterableWrapper(range(20)).map(noisy), 1))


class Drawing:
    def __init__(self) -> None:
        self.draws = [random.random()]


@pytest.mark.parametrize(
    ("make", "draws"),
    [
        (lambda: IterableWrapper(range(9)).shuffle().sharding_filter().batch(2), False),
        (lambda: IterableWrapper([1, (2, "a"), {"b": None}]).cycle(2), False),
        (lambda: SequenceWrapper([b"a", b"b"]).shuffle(), False),
        (lambda: IterableWrapper([1, 2]).map(noisy), True),
        (lambda: IterableWrapper([1, Drawing()]), True),
        (lambda: IterableWrapper([[1], [[Drawing()]]]), True),
        (lambda: IterableWrapper(fed(0)), True),
        (lambda: Fed().batch(2), True),
    ],
)
def test_random_states_are_changed_over_where_code_of_the_users_runs(make: Callable[[], Any], draws: bool) -> None:
    assert runs_users_code(make()) is draws


def test_L3_a_graph_that_draws_nothing_is_the_same_everywhere() -> None:
    def make() -> Any:
        return IterableWrapper(range(40)).shuffle(buffer_size=7).sharding_filter().batch(3)

    expected = list(loader(make, 3))
    for position in (0, 1, 5):
        going = loader(make, 3, policy=always)
        stream = iter(going)
        got = [next(stream) for _ in range(position)]
        with DataLoader2(make(), reading_service=MultiProcessingReadingService(2)) as workers:
            workers.load_state_dict(going.state_dict())
            begun = iter(workers)
            got += [item for _, item in zip(range(2), begun)]
            back = loader(make, 3)
            back.load_state_dict(workers.state_dict())
            assert got + list(back) == expected


def test_limits_and_pauses_count_what_is_delivered() -> None:
    expected = list(loader(GRAPHS["draws"], 2))
    going = loader(GRAPHS["draws"], 2)
    stream = iter(going)
    stream.limit(7)
    got = list(stream)
    assert stream.paused
    resumed = loader(GRAPHS["draws"], 2)
    resumed.load_state_dict(going.state_dict())
    stream.resume()
    assert got + list(stream) == expected[:14]
    assert got + list(resumed) == expected


def test_an_item_is_made_when_it_is_asked_for_and_no_other(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.bin").write_bytes(b"x")
    paths = [str(path) for path in tmp_path.iterdir()]
    seen: list[str] = []

    class Names(Sequence[str]):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: Any) -> Any:
            seen.append(paths[index])
            return paths[index]

    before = len(os.listdir("/proc/self/fd"))
    for _path, stream in DataLoader2(IterableWrapper(paths).open_files("b")):
        assert len(os.listdir("/proc/self/fd")) <= before + 1
        stream.close()
    for count, _ in enumerate(DataLoader2(IterableWrapper(Names()).batch(1)), start=1):
        assert len(seen) == count


def test_an_error_of_a_state_says_where_it_happened() -> None:
    class Counted(NodeIterator[Any]):
        def run(self) -> Iterator[Any]:
            yield from self.source.items()

        def get_state(self) -> dict[str, Any]:
            raise KeyError("lost")

    class Node(IterDataPipe[Any]):
        iterator = Counted

        def __init__(self, datapipe: Any) -> None:
            self.datapipe = datapipe

    loader = DataLoader2(Node(IterableWrapper("abc")), reading_service=InProcessReadingService(policy=always))
    with pytest.raises(KeyError, match="lost") as raised:
        list(loader)
    assert any("shard 0" in note for note in raised.value.__notes__)
    assert any("Node" in note for note in raised.value.__notes__)
