"""``DataLoader2``: seeds and epochs, its state at every moment, and how training frameworks use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp

from reading_services import MultiProcessingReadingService, ReadingServiceInterface
from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.errors import IteratorInvalidated
from torchpipe.graph import find, replace_node
from torchpipe.iter import IterableWrapper, Shuffler

KEYS = ["version", "fingerprint", "seed", "epoch", "delivered", "num_shards", "rank", "world_size", "payload"]


def shuffled(length: int = 12) -> Any:
    return IterableWrapper(range(length)).shuffle(buffer_size=5).sharding_filter()


def make(graph: Any = None, seed: int = 4, workers: int | None = None, shards: int = 2, **options: Any) -> Any:
    service: ReadingServiceInterface = (
        InProcessReadingService(num_shards=shards)
        if workers is None
        else MultiProcessingReadingService(workers, "fork", num_shards=shards)
    )
    loader: Any = DataLoader2(shuffled() if graph is None else graph, reading_service=service, **options)
    loader.seed(seed)
    return loader


def epochs(number: int, **options: Any) -> list[list[Any]]:
    """The first epochs, uninterrupted."""
    with make(**options) as loader:
        return [list(loader) for _ in range(number)]


def take(iterator: Any, count: int) -> list[Any]:
    return [next(iterator) for _ in range(count)]


def check_keys(loader: Any) -> dict[str, Any]:
    state: dict[str, Any] = loader.state_dict()
    assert list(state) == KEYS
    assert [type(state[key]) for key in KEYS] == [int, str, *[int] * 6, bytes]
    return state


def at(loader: Any) -> tuple[int, int]:
    """(epoch, delivered)"""
    state = check_keys(loader)
    return state["epoch"], state["delivered"]


# --- seeds and epochs ---


def test_without_a_seed_every_run_differs_and_every_epoch_as_well() -> None:
    one: Any = DataLoader2(shuffled(50))
    other: Any = DataLoader2(shuffled(50))
    streams = [list(one), list(one), list(other), list(other)]
    assert len(set(map(tuple, streams))) == 4
    assert all(sorted(stream) == list(range(50)) for stream in streams)


def test_the_epoch_advances_with_every_iter_and_can_be_set() -> None:
    first, second, third = epochs(3)
    loader = make()
    assert loader.epoch == 0
    stream = iter(loader)
    take(stream, 2)
    assert loader.epoch == 0
    del stream
    assert loader.epoch == 1  # an epoch that was left counts
    assert list(loader) == second
    assert loader.epoch == 2
    loader.set_epoch(0)
    assert (loader.epoch, list(loader), list(loader)) == (0, first, second)
    loader.set_epoch(2)
    assert list(loader) == third
    loader.seed(4)
    assert list(loader) == first


def test_seed_and_set_epoch_in_mid_epoch_are_about_the_epochs_to_come() -> None:
    first = epochs(1)[0]
    loader = make()
    iterator = iter(loader)
    got = take(iterator, 3)
    loader.seed(99)
    loader.set_epoch(5)
    assert loader.epoch == 0
    state = loader.state_dict()
    assert (state["seed"], state["epoch"], state["delivered"]) == (4, 0, 3)
    assert got + list(iterator) == first
    assert got + list(DataLoader2.from_state(state, shuffled())) == first
    assert (loader.state_dict()["seed"], *at(loader)) == (99, 5, 0)


def test_after_load_the_same_seed_keeps_the_position_and_another_is_refused() -> None:
    first, second = epochs(2)
    saving = make()
    take(iter(saving), 5)
    state = saving.state_dict()
    loader = make(seed=1)
    loader.load_state_dict(state)
    loader.seed(4)
    with pytest.raises(RuntimeError, match=r"seed\(1\) would discard .* seed 4: call seed\(\) before load_state_dict"):
        loader.seed(1)
    assert at(loader) == (0, 5)
    assert list(loader) == first[5:]
    assert list(loader) == second
    loader.seed(1)  # there is no loaded position any more
    assert list(loader) == epochs(1, seed=1)[0]


def test_after_load_the_same_epoch_keeps_the_position_and_another_discards_it() -> None:
    first, second, third = epochs(3)
    saving = make()
    take(iter(saving), 5)
    state = saving.state_dict()
    loader = make(seed=1)
    loader.load_state_dict(state)
    loader.set_epoch(0)
    assert at(loader) == (0, 5)
    assert list(loader) == first[5:]
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert at(loader) == (1, 0)
    assert (list(loader), list(loader)) == (second, third)
    loader.load_state_dict(state)
    loader.set_epoch(1)
    loader.set_epoch(0)  # there and back: the epoch that the state was taken in, from its start
    assert list(loader) == first


def test_seed_and_set_epoch_after_shutdown_discard_the_position() -> None:
    for change, expected in ((lambda loader: loader.set_epoch(3), (4, 3, 0)), (lambda x: x.seed(7), (7, 0, 0))):
        loader = make()
        take(iter(loader), 5)
        loader.shutdown()
        assert at(loader) == (0, 5)
        change(loader)
        assert (loader.state_dict()["seed"], *at(loader)) == expected


# --- the state at every moment ---


@pytest.mark.parametrize("workers", [None, 2])
def test_the_keys_of_a_state_are_the_same_at_all_times(workers: int | None) -> None:
    loader = make(workers=workers)
    assert at(loader) == (0, 0)
    iterator = iter(loader)
    assert at(loader) == (0, 0)
    take(iterator, 5)
    assert at(loader) == (0, 5)
    take(iterator, 7)
    assert at(loader) == (0, 12)  # the end is still to come
    assert list(iterator) == []
    assert at(loader) == (1, 0)
    take(iter(loader), 3)
    assert at(loader) == (1, 3)
    loader.shutdown()
    assert at(loader) == (1, 3)
    loader.load_state_dict(loader.state_dict())
    assert at(loader) == (1, 3)
    loader.shutdown()
    assert at(loader) == (1, 3)


@pytest.mark.parametrize("workers", [None, 2])
def test_the_state_after_an_error_stands_before_the_failed_item(workers: int | None, tmp_path: Path) -> None:
    repaired = tmp_path / "repaired"

    def fragile(item: int) -> int:
        if item == 7 and not repaired.exists():
            raise ValueError("item 7")
        return item

    graph = shuffled().map(fragile)
    expected = epochs(1)[0]
    loader = make(graph, workers=workers)
    iterator = iter(loader)
    got = []
    with pytest.raises(ValueError, match="item 7"):
        for item in iterator:
            got.append(item)
    assert got == expected[: expected.index(7)]
    assert at(loader) == (0, len(got))
    with pytest.raises(IteratorInvalidated, match="an exception has ended this iterator in the midst of epoch 0"):
        next(iterator)
    state = loader.state_dict()
    loader.shutdown()
    assert loader.state_dict() == state
    repaired.touch()
    loader.load_state_dict(state)
    assert got + list(loader) == expected
    loader.shutdown()


def test_saving_straight_after_loading_gives_the_same_state() -> None:
    saving = make()
    take(iter(saving), 5)
    state = saving.state_dict()
    loader = make(seed=1)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    iterator = iter(loader)
    assert at(loader) == (0, 5)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(IteratorInvalidated):
        next(iterator)
    assert list(loader) == epochs(1)[0][5:]


def test_what_invalidates_an_iterator() -> None:
    loader = make()
    for invalidate in (iter, lambda x: x.load_state_dict(x.state_dict()), lambda x: x.shutdown()):
        iterator = iter(loader)
        next(iterator)
        invalidate(loader)
        for _ in range(2):
            with pytest.raises(IteratorInvalidated, match=r"has ended this iterator: .* call iter\(loader\) again"):
                next(iterator)
    ended = iter(loader)
    assert len(list(ended)) == 11  # of the state that was loaded, at which the last one was a look
    assert list(ended) == []


def test_an_older_state_can_be_loaded_again_and_again() -> None:
    first, second = epochs(2)
    loader = make()
    iterator = iter(loader)
    states = [loader.state_dict()]
    for _ in range(12):
        next(iterator)
        states.append(loader.state_dict())
    for position in (3, 0, 11, 3):
        loader.load_state_dict(states[position])
        assert list(loader) == first[position:]
    assert list(loader) == second
    loader.load_state_dict(states[12])  # after the last item: the rest is empty, and the next epoch follows
    assert (list(loader), list(loader)) == ([], second)


def test_from_state_takes_seed_position_and_shards_from_the_state() -> None:
    saving = make(shards=3)
    expected = epochs(2, shards=3)
    take(iter(saving), 4)
    loader: Any = DataLoader2.from_state(saving.state_dict(), shuffled())
    assert (loader.num_shards, loader.epoch) == (3, 0)
    assert [list(loader), list(loader)] == [expected[0][4:], expected[1]]


# --- leaving, shutting down, two at once ---


@pytest.mark.parametrize("workers", [None, 2])
def test_a_break_and_then_the_next_epoch(workers: int | None) -> None:
    first, second, third = epochs(3)
    with make(workers=workers) as loader:
        for number, item in enumerate(loader):
            assert item == first[number]
            if number == 4:
                break
        assert at(loader) == (0, 5)
        assert [list(loader), list(loader)] == [second, third]


@pytest.mark.parametrize("workers", [None, 2])
def test_after_shutdown_the_state_answers_and_iter_starts_the_next_epoch(workers: int | None) -> None:
    first, second = epochs(2)
    loader = make(workers=workers)
    take(iter(loader), 5)
    loader.shutdown()
    loader.shutdown()
    state = loader.state_dict()
    assert list(loader) == second
    loader.shutdown()
    loader.load_state_dict(state)
    assert list(loader) == first[5:]
    loader.shutdown()


@pytest.mark.parametrize("workers", [None, 2])
def test_two_loaders_over_one_graph_at_once(workers: int | None) -> None:
    graph = shuffled()
    with make(graph, seed=1, workers=workers) as one, make(graph, seed=2) as other:
        pairs = list(zip(one, other, strict=True))
    assert [left for left, _ in pairs] == epochs(1, seed=1)[0]
    assert [right for _, right in pairs] == epochs(1, seed=2)[0]


# --- len, explain, adapters ---


@pytest.mark.parametrize("length", range(8))
@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_len_counts_what_all_shards_give(length: int, shards: int, drop_last: bool) -> None:
    graph = IterableWrapper(range(length)).sharding_filter().batch(2, drop_last=drop_last)
    loader = make(graph, shards=shards)
    assert len(loader) == len(list(loader))


def test_len_of_other_graphs() -> None:
    source = IterableWrapper(range(10))
    for graph in (
        source.sharding_filter().map(str).enumerate().prefetch(2),
        source.batch(3).sharding_filter(),
        source.sharding_filter().take(2),
        source.sharding_filter().batch(2).to_device("cpu"),
        source.concat(source).sharding_filter(),
        source.sharding_round_robin_dispatch().batch(4),
    ):
        loader = make(graph, shards=3)
        assert len(loader) == len(list(loader)), graph
    with pytest.raises(TypeError, match="not known .*Filter.* Count the items"):
        len(make(source.sharding_filter().filter(bool)))


def test_len_goes_with_the_shards_of_a_loaded_state() -> None:
    graph = IterableWrapper(range(8)).sharding_filter().batch(3)
    loader: Any = DataLoader2(graph)
    assert len(loader) == 3
    loader.load_state_dict(make(graph, shards=4).state_dict())
    assert len(loader) == len(list(loader)) == 4


def test_explain_says_what_runs_where() -> None:
    graph = shuffled().batch(2).to_device("cpu").map(len)
    in_process, with_workers = make(graph, shards=3).explain(), make(graph, workers=2, shards=3).explain()
    assert in_process.splitlines()[0] == "shard section: in this process, 3 shards one after the other"
    assert with_workers.splitlines()[0] == "shard section: 3 shards in 2 worker processes (fork)"
    for text in (in_process, with_workers):
        shard, main = text.split("main section: in this process")
        assert "3 ShardingFilter  <- 2  [divides the stream between the shards]" in shard
        assert shard.count("\n") == 5
        assert "merge" in main
        assert "ToDevice" in main
        assert "Mapper(len)" in main


def test_adapters_change_what_runs_and_not_the_users_graph() -> None:
    def in_order(datapipe: Any) -> Any:
        (shuffler,) = find(datapipe, Shuffler)
        return replace_node(datapipe, shuffler, shuffler.source)

    graph = shuffled()
    assert list(make(graph, datapipe_adapter_fn=in_order)) == list(range(12))
    assert list(make(graph, datapipe_adapter_fn=[in_order, lambda datapipe: datapipe.map(str)]))[0] == "0"
    assert list(make(graph, datapipe_adapter_fn=[])) == list(make(graph)) != list(range(12))


# --- as training frameworks use it ---


@pytest.mark.parametrize("workers", [None, 2])
def test_a_trainer_that_pulls_len_items_and_never_sees_the_end(workers: int | None) -> None:
    """Lightning asks a sized loader for exactly len() batches an epoch, with a new iterator for each."""
    graph = shuffled().batch(2)
    expected = epochs(4, graph=graph)
    with make(graph, workers=workers) as loader:
        for epoch in range(2):
            assert take(iter(loader), len(loader)) == expected[epoch]
        state = loader.state_dict()
        assert (state["epoch"], state["delivered"]) == (1, len(loader))
        assert take(iter(loader), 6) == expected[2]  # the one that saved goes on
    with make(graph, seed=0, workers=workers) as restored:  # so does another, after a restart
        restored.load_state_dict(state)
        assert list(restored) == []  # of the epoch that was saved, nothing is left
        assert take(iter(restored), len(restored)) == expected[2]
        assert at(restored) == (2, 6)
        assert take(iter(restored), len(restored)) == expected[3]


def test_set_epoch_before_the_first_item_after_a_load_at_the_end_of_an_epoch() -> None:
    """A trainer may set the epoch after iter(): that is about the next one, also where this one has nothing left."""
    expected = epochs(6)
    saving = make()
    take(iter(saving), 12)
    loader = make()
    loader.load_state_dict(saving.state_dict())
    iterator = iter(loader)
    loader.set_epoch(5)
    assert list(iterator) == []
    assert list(loader) == expected[5]


def test_a_trainer_that_saves_and_loads_before_iter() -> None:
    """accelerate reads and loads states of loaders that are not being iterated."""
    first, second = epochs(2)
    loader = make()
    fresh = loader.state_dict()
    other = make(seed=0)
    other.load_state_dict(fresh)
    assert list(other) == first
    after_one = other.state_dict()
    other = make(seed=0)
    other.load_state_dict(after_one)
    assert at(other) == (1, 0)
    assert list(other) == second


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_distributed_checkpoint_without_a_process_group(tmp_path: Path) -> None:
    expected = epochs(2)
    saving = make()
    take(iter(saving), 5)
    dcp.save({"loader": saving.state_dict()}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    loader = make(seed=1)
    template = {"loader": loader.state_dict()}
    dcp.load(template, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    assert template["loader"] == saving.state_dict()
    loader.load_state_dict(template["loader"])
    assert [list(loader), list(loader)] == [expected[0][5:], expected[1]]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_distributed_checkpoint_takes_the_loader_itself(tmp_path: Path) -> None:
    """It is a ``Stateful`` of torch.distributed.checkpoint."""
    saving = make()
    take(iter(saving), 5)
    dcp.save({"loader": saving}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    loader = make(seed=1)
    dcp.load({"loader": loader}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    assert list(loader) == epochs(1)[0][5:]
