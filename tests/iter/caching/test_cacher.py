"""``cache``: one pass, made once, the same whatever is kept; whole chunks or none, whoever dies."""

from __future__ import annotations

import fcntl
import functools
import logging
import multiprocessing
import os
import random
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.laws.executors import make_loader, make_service, oracle, run
from tests.laws.graphs import GraphSpec, text_of
from tests.laws.kills import Kill, run_with_kills
from tests.sources import wait_until
from torchpipe import DataLoader2
from torchpipe.errors import GraphError, ReplayWarning, StateError
from torchpipe.iter import IterableWrapper, IterDataPipe, PathList
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


@pytest.mark.parametrize("disk", [False, True])
def test_what_on_error_leaves_out_is_kept_apart_and_said_before_the_cache(disk: bool, tmp_path: Path) -> None:
    def fails(item: int) -> int:
        if item in (6, 7):
            raise ValueError("bad")
        return item

    def made(policy: Any, **options: Any) -> Any:
        return IterableWrapper(range(10)).map(fails).on_error(policy, **options).cache(path, chunk_items=4)

    path, good = tmp_path if disk else None, [0, 1, 2, 3, 4, 5, 8, 9]
    skipping = made("skip")
    for _ in range(2):
        assert list(skipping) == good
        assert list(skipping.on_error("skip")) == good
    plain = IterableWrapper(range(10)).map(fails).cache(path, chunk_items=4)
    for node in (plain, made("raise"), made("raise").on_error("skip"), made("skip", budget=1)):
        with pytest.raises(ValueError, match="bad"):
            list(node)
    with pytest.raises(GraphError, match=r"stands behind a cache, .* Put another on_error\(\) before it"):
        list(plain.on_error("skip"))
    for workers in (None, 2):
        with DataLoader2(skipping.sharding_filter(), reading_service=make_service(workers, 2)) as loader:
            assert [list(loader) for _ in range(2)] == [good] * 2
    check_node(lambda: made("skip"), global_random=True)


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
    assert all(len(folder.name) == 32 for folder in tmp_path.iterdir())
    about = [(folder / "about.txt").read_text() for folder in tmp_path.iterdir()]
    assert any("ShardingFilter" in text and "share 1 of 2" in text for text in about)


def numbers(path: Path) -> Any:
    return PathList(str(path / "*.txt")).read_lines().map(int)


def plus(item: int, by: int) -> int:
    return item + by


def write(folder: Path, lines: range) -> Path:
    folder.mkdir(exist_ok=True)
    text, file = "".join(f"{line}\n" for line in lines), folder / "x.txt"
    if not file.exists() or file.read_text() != text:
        file.write_text(text)
    return folder


CHANGES: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "path": (lambda path: numbers(write(path / "a", range(8))), lambda path: numbers(write(path / "b", range(8, 16)))),
    "content": (lambda path: numbers(write(path, range(8))), lambda path: numbers(write(path, range(1, 9)))),
    "listed": (
        lambda path: PathList(f"{write(path, range(8))}/*.txt").open_files().flatmap(lambda pair: pair[1]),
        lambda path: PathList(f"{write(path, range(9))}/*.txt").open_files().flatmap(lambda pair: pair[1]),
    ),
    "bound": (
        lambda path: IterableWrapper(range(8)).map(functools.partial(plus, by=2)),
        lambda path: IterableWrapper(range(8)).map(functools.partial(plus, by=10)),
    ),
    "code": (
        lambda path: IterableWrapper(range(8)).map(lambda item: item + 1),
        lambda path: IterableWrapper(range(8)).map(lambda item: item + 100),
    ),
    "data": (lambda path: IterableWrapper([1] * 8), lambda path: IterableWrapper([2] * 8)),
    "array": (lambda path: IterableWrapper(np.zeros(8)), lambda path: IterableWrapper(np.ones(8))),
    "weights": (
        lambda path: IterableWrapper(range(8)).mix(IterableWrapper(range(8)), weights=[1, 2], stop="all_exhausted"),
        lambda path: IterableWrapper(range(8)).mix(IterableWrapper(range(8)), weights=[2, 1], stop="all_exhausted"),
    ),
    "argument": (lambda path: IterableWrapper(range(8)).batch(2), lambda path: IterableWrapper(range(8)).batch(4)),
    "seed": (
        lambda path: IterableWrapper(range(8)).shuffle().set_seed(1),
        lambda path: IterableWrapper(range(8)).shuffle().set_seed(2),
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("workers", [None, 2])
def test_what_is_made_of_other_things_is_never_handed_out(change: str, workers: int | None, tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    def run(make: Callable[[Path], Any], kept: bool) -> list[str]:
        node = make(tmp_path)
        node = node.cache(cache, chunk_items=3) if kept else node
        return text_of(make_loader(node.sharding_filter(), make_service(workers, 2)))

    for make in CHANGES[change]:
        expected = sorted(run(make, False))
        assert sorted(run(make, True)) == sorted(run(make, True)) == expected
    assert len(list(cache.iterdir())) == 2


def test_a_resume_with_another_function_makes_what_follows_anew(tmp_path: Path) -> None:
    """A state counts functions by name, so that a mended one goes on; what the broken one made is not used."""

    def make(by: int) -> Any:
        def mended(item: int) -> int:
            return item * 3 if by == 3 else item * 2

        return IterableWrapper(range(20)).map(mended).cache(tmp_path, chunk_items=4)

    assert list(iterate(make(2))) == list(range(0, 40, 2))
    iterator = iterate(make(2))
    iterator.drop(9)
    resumed = iterate(make(3))
    resumed.load_state_dict(iterator.state_dict())
    assert list(resumed) == [item * 3 for item in range(9, 20)]
    assert list(iterate(make(2))) == list(range(0, 40, 2))
    assert list(iterate(make(3))) == list(range(0, 60, 3))


def test_what_cannot_be_seen_to_change_needs_a_version(tmp_path: Path) -> None:
    endless = iter(int, 1)
    rest = (item for item in endless)

    def uses(item: int) -> int:
        return item + next(rest)

    node = IterableWrapper(range(4)).map(uses)
    with pytest.raises(TypeError, match=r"'rest', which uses\(\) holds of fn of Mapper\(uses\).*Pass version='1'"):
        list(node.cache(tmp_path))
    assert not list(tmp_path.iterdir())
    assert list(node.cache()) == list(node.cache(tmp_path, version="1")) == list(range(4))
    assert list(node.map(str).cache(tmp_path, version="1")) == ["0", "1", "2", "3"]
    assert len(list(tmp_path.iterdir())) == 2


def test_the_cost_of_a_chunk_does_not_grow_with_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = []
    for name in ("listdir", "scandir"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *path, real=real: [listed.append(path), real(*path)][1])
    assert list(IterableWrapper(range(40)).cache(tmp_path, chunk_items=2)) == list(range(40))
    assert listed == []
    assert len(chunks(tmp_path)) == 21


class Draws:
    """An iterable without state that draws."""

    def __iter__(self) -> Iterator[Any]:
        for item in range(9):
            yield item, random.random(), float(np.random.rand()), torch.rand(()).item()


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
@pytest.mark.parametrize("drawing", ["function", "iterable"])
@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("divided", [False, True])
def test_L1_what_is_drawn_before_it_does_not_depend_on_who_makes_it(
    drawing: str, disk: bool, divided: bool, tmp_path: Path
) -> None:
    def graph(path: Path | None) -> Any:
        source = IterableWrapper(Draws() if drawing == "iterable" else range(9))
        source = source if drawing == "iterable" else source.map(decoded).random_map(lambda x, rng: (x, rng.random()))
        if divided:
            return source.sharding_filter().cache(path, chunk_items=2)
        return source.cache(path, chunk_items=2).sharding_filter()

    expected = oracle(graph(None), 2, epochs=2)
    assert expected[0] == expected[1]
    if not divided:
        assert oracle(graph(None), 3, epochs=1) == oracle(graph(None), 1, epochs=1) == expected[:1]
    for number in range(4):
        path = tmp_path / str(number) if disk else None
        for workers in (2, 1, None, 2):
            assert run(graph(path), make_service(workers, 2)) == expected
    for k in (1, 4, 9):  # resumed with nothing kept
        with make_loader(graph(tmp_path / "a" if disk else None), make_service(2, 2)) as loader:
            iterator = iter(loader)
            head = [repr(next(iterator)) for _ in range(k)]
            state = loader.state_dict()
        with make_loader(graph(tmp_path / f"b{k}" if disk else None), make_service(None, 2)) as loader:
            loader.load_state_dict(state)
            assert head + (text_of(loader) if k < 9 else []) == expected[0]


def test_L4_a_killed_worker_changes_nothing_of_what_is_kept(tmp_path: Path) -> None:
    graph = IterableWrapper(range(40)).map(decoded).cache(tmp_path, chunk_items=3).sharding_filter()
    expected = oracle(IterableWrapper(range(40)).map(decoded).cache(chunk_items=3).sharding_filter(), 2, epochs=3)
    with make_loader(graph, make_service(2, 2)) as loader:
        kills = [Kill(0, 7, 0, "SIGKILL"), Kill(0, 20, 1, "SIGKILL"), Kill(1, 5, 0, "SIGTERM")]
        assert run_with_kills(loader, 3, kills) == expected
    assert run(graph, make_service(1, 2), 3) == expected


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
    assert f"process {process.pid} on" in (folder / "lease.lock").read_text()
    (folder / "00000002.chunk.part").write_bytes(b"left by a kill")
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
            assert list(loader) == []  # the rest of the first epoch
            assert list(map(repr, loader)) == second
