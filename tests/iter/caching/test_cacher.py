"""``cache``: one pass, made once, the same whatever is kept; whole chunks or none, whoever dies."""

from __future__ import annotations

import fcntl
import logging
import multiprocessing
import os
import random
import signal
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.laws.executors import make_loader, make_service, oracle
from tests.laws.graphs import GraphSpec
from tests.sources import wait_until
from torchpipe import DataLoader2
from torchpipe.errors import GraphError, ReplayWarning, StateError
from torchpipe.iter import IterableWrapper, IterDataPipe
from torchpipe.node.datapipe import iterate
from torchpipe.state import Cursor, decode, encode
from torchpipe.testing import CountingSource, check_node


def decoded(item: int) -> dict[str, Any]:
    return {"x": torch.full((3,), item), "drawn": random.random()}


class Calls:
    """A function that notes its calls where other processes see them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, item: Any) -> Any:
        with open(self.path, "a") as file:
            file.write(f"{item}\n")
        return item

    def made(self) -> list[int]:
        return [int(line) for line in self.path.read_text().split()] if self.path.exists() else []


@pytest.mark.parametrize("disk", [False, True])
def test_L2_exact_resume(disk: bool, tmp_path: Path) -> None:
    """Warm and cold: later passes of the check find what earlier ones have stored."""
    path = tmp_path if disk else None
    check_node(
        lambda: CountingSource(range(11)).cache(path, chunk_items=4).map(lambda item: (item, random.random())),
        pulls=lambda k: 4 * -(-k // 4),
        global_random=True,
    )
    check_node(
        lambda: IterableWrapper(range(9)).shuffle().map(decoded).sharding_filter().cache(path, chunk_items=2).shuffle()
    )


def test_L1_the_stream_is_that_of_one_pass_whatever_is_kept(tmp_path: Path) -> None:
    def make(*arguments: Any, **options: Any) -> list[str]:
        node = IterableWrapper(range(20)).shuffle().map(decoded).cache(*arguments, **options)
        return [repr(list(iterate(node, seed=seed, epoch=epoch))) for seed, epoch in ((0, 0), (0, 3), (7, 1))]

    first = make()
    assert len(set(first)) == 1
    for options in ({"max_bytes": 0}, {"max_bytes": 2000, "chunk_items": 3}, {"chunk_items": 1}):
        assert make(**options) == first
    assert make(tmp_path) == first == make(tmp_path)


def test_it_is_made_once(tmp_path: Path) -> None:
    fn = Calls(tmp_path / "calls")
    node = IterableWrapper(range(50)).map(fn).cache(chunk_items=8)
    for epoch in range(3):
        assert list(iterate(node, epoch=epoch)) == list(range(50))
    assert fn.made() == list(range(50))
    bounded = Calls(tmp_path / "bounded")
    node = IterableWrapper(range(50)).map(bounded).cache(chunk_items=8, max_bytes=700)
    for epoch in range(2):
        assert list(iterate(node, epoch=epoch)) == list(range(50))
    kept = 100 - len(bounded.made())
    assert 8 <= kept <= 40
    assert kept % 8 == 0
    assert bounded.made()[50:] == list(range(kept, 50))  # it goes on where the kept ones end


def test_L1_L3_in_workers_and_across_runs(tmp_path: Path) -> None:
    for path in (None, tmp_path / "cache"):
        fn = Calls(tmp_path / f"calls {path is None}")
        graph = IterableWrapper(range(40)).sharding_filter().map(fn).cache(path, chunk_items=4).shuffle()
        with DataLoader2(graph, reading_service=make_service(2, 2)) as loader:
            loader.seed(1)
            epochs = [list(loader) for _ in range(3)]
        assert sorted(fn.made()) == sorted(epochs[0]) == list(range(40))  # in workers, too, once for all epochs
        assert len({tuple(epoch) for epoch in epochs}) == 3
        with DataLoader2(graph, reading_service=make_service(None, 2)) as loader:
            loader.seed(1)
            assert [list(loader) for _ in range(3)] == epochs
        assert len(fn.made()) == (80 if path is None else 40)


def test_L2_a_cold_resume_makes_one_chunk_again(tmp_path: Path) -> None:
    fn = Calls(tmp_path / "calls")

    def make() -> Any:
        return IterableWrapper(range(100)).map(fn).cache(chunk_items=8)

    iterator = iterate(make())
    iterator.drop(90)
    state = decode(encode(iterator.state_dict()))
    before = len(fn.made())
    resumed = iterate(make())
    resumed.load_state_dict(state)
    assert list(resumed) == list(range(90, 100))
    assert fn.made()[before:] == list(range(88, 100))


class Plain(IterDataPipe[Any]):
    """No state, and draws."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            yield item, random.random()


def test_L5_an_input_without_state_is_replayed_and_announced() -> None:
    def make() -> Any:
        return Plain(IterableWrapper(range(20))).cache(chunk_items=4)

    whole = list(iterate(make()))
    iterator = iterate(make())
    iterator.drop(13)
    with pytest.warns(ReplayWarning, match="first 12 items"):
        resumed = iterate(make())
        resumed.load_state_dict(iterator.state_dict())
    assert list(resumed) == whole[13:]
    check_node(make, epochs=[0], num_shards=1)


def test_L7_an_exception_comes_in_its_place_each_time(tmp_path: Path) -> None:
    def fails(item: int) -> int:
        if item == 6:
            raise ValueError("six")
        return item

    node = IterableWrapper(range(10)).map(fails).cache(tmp_path, chunk_items=4)
    for _ in range(2):
        iterator = iterate(node)
        assert [next(iterator) for _ in range(6)] == list(range(6))
        with pytest.raises(ValueError, match="six"):
            next(iterator)
    skipping = IterableWrapper(range(10)).map(fails).cache(tmp_path, chunk_items=4).on_error("skip")
    for _ in range(2):
        assert list(skipping) == [0, 1, 2, 3, 4, 5, 7, 8, 9]


def test_items_are_copies_and_keep_their_types() -> None:
    node = IterableWrapper([{"x": np.arange(3), "t": (1, None)}]).cache()
    for _ in range(2):
        (item,) = node
        assert item["t"] == (1, None)
        assert item["x"].tolist() == [0, 1, 2]
        item["x"][:] = 9
        item["t"] = 0


# -- the folder --------------------------------------------------------------------------------


def chunks(path: Path) -> list[Path]:
    return sorted(path.rglob("*.chunk"))


def test_what_is_damaged_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fn = Calls(tmp_path / "calls")
    node = IterableWrapper(range(20)).map(fn).cache(tmp_path / "cache", chunk_items=4)
    assert list(node) == list(range(20))
    files = chunks(tmp_path)
    assert len(files) == 6  # the last one is empty: it says that this is the end
    for file, data in ((files[1], b""), (files[2], files[2].read_bytes()[:-5]), (files[3], b"x" * 100)):
        file.write_bytes(data)
    files[4].unlink()
    with caplog.at_level(logging.WARNING, "torchpipe"):
        assert list(node) == list(range(20))
    assert sum("cannot be read and will be made again" in message for message in caplog.messages) >= 3
    assert fn.made()[20:] == list(range(4, 20))
    assert list(node) == list(range(20))
    assert len(fn.made()) == 36


def test_other_graphs_versions_and_shards_have_folders_of_their_own(tmp_path: Path) -> None:
    source = IterableWrapper(range(6))
    for node, shard in (
        (source.cache(tmp_path), 0),
        (source.cache(tmp_path, version=2), 0),
        (source.map(str).cache(tmp_path), 0),
        (source.sharding_filter().cache(tmp_path), 0),
        (source.sharding_filter().cache(tmp_path), 1),
        (source.cache(tmp_path), 1),  # not divided: as in shard 0
    ):
        list(iterate(node, shard=shard, num_shards=2))
    assert len(list(tmp_path.iterdir())) == 5
    about = [(folder / "about.txt").read_text() for folder in tmp_path.iterdir()]
    assert any("ShardingFilter" in text and "share 1 of 2" in text for text in about)


def make_slowly(item: int) -> int:
    if item == int(os.environ["STOP_AT"]):
        Path(os.environ["REACHED"]).touch()
        signal.pause()
    return item


def fill(path: Path) -> None:
    list(IterableWrapper(range(20)).map(make_slowly).cache(path, chunk_items=4))


def test_L4_what_a_killed_process_has_stored_is_used_and_its_lease_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOP_AT", "10")
    monkeypatch.setenv("REACHED", str(tmp_path / "reached"))
    cache = tmp_path / "cache"
    process = multiprocessing.get_context("fork").Process(target=fill, args=(cache,))
    process.start()
    wait_until((tmp_path / "reached").exists)
    (folder,) = cache.iterdir()
    assert len(chunks(cache)) == 2
    assert f"process {process.pid} on" in (folder / "lease.owner").read_text()
    (folder / "half.part").write_bytes(b"left by a kill")
    got: list[Any] = []
    monkeypatch.setenv("STOP_AT", "-1")
    node = IterableWrapper(range(20)).map(make_slowly).cache(cache, chunk_items=4)
    waiting = threading.Thread(target=lambda: got.extend(node))
    waiting.start()  # it waits for the third chunk, until its maker is dead
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    waiting.join()
    assert got == list(range(20))
    assert len(chunks(cache)) == 6
    assert not list(folder.glob("*.part"))


def test_several_processes_make_each_chunk_once(tmp_path: Path) -> None:
    fn = Calls(tmp_path / "calls")
    graph = IterableWrapper(range(60)).map(fn).cache(tmp_path / "cache", chunk_items=4).sharding_filter()
    with DataLoader2(graph, reading_service=make_service(3, 3)) as loader:
        assert sorted(loader) == list(range(60))
    assert sorted(fn.made()) == list(range(60))  # though all three shards read all of it


def test_L7_an_owner_that_does_nothing_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = IterableWrapper(range(6)).cache(tmp_path, chunk_items=2, lease_timeout_s=0.05)
    assert list(node.take(2)) == [0, 1]
    (folder,) = tmp_path.iterdir()
    with open(folder / "lease.lock", "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with caplog.at_level(logging.WARNING, "torchpipe"):
            assert list(node) == list(range(6))
    assert len(chunks(tmp_path)) == 1
    assert "holds the lease of" in caplog.messages[0]
    assert "going on without it" in caplog.messages[0]
    assert list(node) == list(range(6))
    assert len(chunks(tmp_path)) == 4


def test_where_nothing_can_be_written_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    node = IterableWrapper(range(6)).cache("/proc/torchpipe", chunk_items=2)
    with caplog.at_level(logging.WARNING, "torchpipe"):
        assert list(node) == list(range(6))
    assert [message.partition(" in ")[0] for message in caplog.messages] == ["cache: nothing more is stored"]


class Thing:
    def __init__(self) -> None:
        self.value = object


def test_L8_pickles_are_stored_and_read_only_if_allowed(tmp_path: Path) -> None:
    node = IterableWrapper([Thing(), Thing()])
    with pytest.raises(TypeError, match=r"would store tests.iter.caching.test_cacher.Thing as a pickle"):
        list(node.cache(tmp_path))
    assert all(type(item) is Thing for item in node.cache(tmp_path, allow_pickle=True))
    with pytest.raises(StateError, match="allow_pickle"):
        list(node.cache(tmp_path))
    assert all(type(item) is Thing for item in node.cache())  # in memory: of this process's making


@pytest.mark.parametrize(
    "forge",
    [
        {"before": 3},
        {"before": Cursor(b"x", 99)},
        {"before": Cursor(None, 0)},
        {"chunk": 0},
        {"chunk": -1},
        {"replay": "x"},
    ],
)
def test_L8_forged_states_are_refused(forge: dict[str, Any]) -> None:
    def make() -> Any:
        return IterableWrapper(range(9)).cache(chunk_items=2)

    iterator = iterate(make())
    iterator.drop(5)
    state = decode(encode(iterator.state_dict()))
    with pytest.raises(StateError):
        iterate(make()).load_state_dict(state | forge)
    resumed = iterate(make())
    resumed.load_state_dict(state | {"before": Cursor(encode({"input": {}, "random": 3}), 0)})
    with pytest.raises(StateError):
        next(resumed)


def test_where_it_cannot_stand() -> None:
    dispatched = IterableWrapper(range(6)).sharding_round_robin_dispatch().cache()
    with (
        DataLoader2(dispatched, reading_service=make_service(None, 2)) as loader,
        pytest.raises(GraphError, match="cache"),
    ):
        list(loader)
    behind = IterableWrapper(range(6)).to_device("cpu").cache()
    with (
        DataLoader2(behind, reading_service=make_service(None, 1)) as loader,
        pytest.raises(GraphError, match="behind"),
    ):
        list(loader)


@pytest.mark.parametrize("chunk_items", [1, 2])
def test_L2_branches_that_stand_apart_draw_again_as_they_did(chunk_items: int) -> None:
    """A chunk is made from where its input stood: not where one branch would draw anew what another one has had."""
    spec: GraphSpec = (3, (), (("retry", 1), ("fork_lazy", 1), ("cache", chunk_items)), False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReplayWarning)
        first, second = oracle(spec, 1)
        with make_loader(spec, make_service(None, 1, every=1)) as loader:
            stream = iter(loader)
            assert [repr(next(stream)) for _ in first] == first
            state = loader.state_dict()
        with make_loader(spec, make_service(None, 1)) as loader:
            loader.load_state_dict(state)
            assert list(map(repr, loader)) == second


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "message"),
    [
        ((3,), {}, TypeError, "path must be a folder, got 3"),
        (("s3://bucket/x",), {}, ValueError, "needs a folder with locks"),
        (("x",), {"max_bytes": 3}, ValueError, "give one of them"),
        ((), {"max_bytes": -1}, ValueError, "max_bytes must be at least 0"),
        ((), {"chunk_items": 0}, ValueError, "chunk_items must be at least 1"),
        ((), {"lease_timeout_s": -1}, ValueError, "lease_timeout_s must be 0 s or more"),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, options: Any, kind: Any, message: str) -> None:
    with pytest.raises(NotADirectoryError, match="is a file"):
        IterableWrapper([1]).cache(__file__)
    with pytest.raises(kind, match=message):
        IterableWrapper([1]).cache(*arguments, **options)
