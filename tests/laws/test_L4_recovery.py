"""L4, recovery: whatever kills a worker, at any moment, the stream stays as it is."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reading_services import Restart
from tests.laws.executors import make_loader, make_service, oracle, pids
from tests.laws.graphs import GraphSpec, graph_specs
from tests.laws.kills import kills_in, run_with_kills
from tests.tries import tries
from torchpipe.errors import WorkerDiedError
from torchpipe.iter import IterableWrapper

RICH: GraphSpec = (
    60,
    (("shuffle", 4),),
    (("global_random", 1), ("item_random", 1), ("filter", 3), ("shuffle", 3), ("flatmap_lazy", 1), ("batch", 2)),
    False,
)


def kill(pid: int, signal_number: int) -> None:
    try:
        os.kill(pid, signal_number)
    except ProcessLookupError:
        pass


@pytest.mark.nightly
@given(graph_specs(), st.integers(1, 3), st.data())
@settings(max_examples=tries(25))
def test_L4_signals_between_items(spec: GraphSpec, workers: int, data: st.DataObject) -> None:
    expected = oracle(spec, 3)
    kills = data.draw(kills_in(expected, most=3), "kills")
    # Kills may fall on one position by chance, which is not what this is about: a large budget
    with make_loader(
        spec, make_service(workers, 3, on_worker_death=Restart(max_deaths=1000), worker_prefetch_cnt=3)
    ) as loader:
        assert run_with_kills(loader, len(expected), kills) == expected


DISPATCHED: GraphSpec = (60, (("global_random", 1), ("shuffle", 4)), RICH[2], True)


@pytest.mark.nightly
@pytest.mark.parametrize(("context", "wanted"), [("fork", 20), ("forkserver", 10), ("spawn", 1)])
@pytest.mark.parametrize("spec", [RICH, DISPATCHED], ids=["sharding_filter", "dispatcher"])
def test_L4_kills_at_random_moments(spec: GraphSpec, context: str, wanted: int) -> None:
    """A thread kills processes while they work, start, send and end, until enough were replaced; nobody notices."""
    expected = oracle(spec, 3, epochs=4)
    rng = random.Random(11)
    # Deaths may fall on one position by chance, which is not what this test is about: a large budget
    service = make_service(
        2, 3, context=context, every=2, on_worker_death=Restart(max_deaths=1000), main_prefetch_cnt=2
    )
    with make_loader(spec, service) as loader:
        over, delivered = threading.Event(), threading.Event()

        def restarts() -> int:
            return loader.reading_service.restarts  # type: ignore[attr-defined, no-any-return]

        def kill_now_and_then() -> None:
            """One by one, and never two without an item in between: slow starters must get somewhere."""
            while delivered.wait():
                delivered.clear()  # before looking whether it is over: what is set then must not be cleared
                if over.wait(rng.uniform(0, 0.04)) or restarts() >= wanted:
                    return
                running = pids(loader)
                if running:
                    kill(rng.choice(running), signal.SIGKILL)

        killer = threading.Thread(target=kill_now_and_then)
        killer.start()
        try:
            while restarts() < wanted:
                loader.set_epoch(0)
                for epoch in expected:
                    got = []
                    for item in loader:
                        got.append(repr(item))
                        delivered.set()
                    assert got == epoch
        finally:
            over.set()
            delivered.set()
            killer.join()


class DieOnce:
    """Ends its process in its own way when it first sees ``number``; a file remembers that it has."""

    def __init__(self, folder: Path, number: int, how: str) -> None:
        self.mark, self.number, self.how = str(folder / "died"), number, how

    def __call__(self, item: int) -> tuple[int, float]:
        if item == self.number and not os.path.exists(self.mark):
            with open(self.mark, "w"):
                die(self.how)
        return item, random.random()


class AlwaysDie(DieOnce):
    def __call__(self, item: int) -> Any:
        if item == self.number:
            die(self.how)
        return item


def die(how: str) -> None:
    match how:
        case "SIGKILL" | "SIGSEGV" | "SIGTERM":
            os.kill(os.getpid(), getattr(signal, how))
        case "exit 0" | "exit 1":
            os._exit(int(how[-1]))


WAYS = ("SIGKILL", "SIGSEGV", "SIGTERM", "exit 0", "exit 1")


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("number", [0, 29, 59])
def test_L4_a_death_in_mid_item(how: str, number: int, tmp_path: Path) -> None:
    graph = IterableWrapper(range(60)).shuffle(buffer_size=9).sharding_filter().map(DieOnce(tmp_path, number, how))
    (tmp_path / "died").touch()
    expected = oracle(graph, 2, epochs=1)
    (tmp_path / "died").unlink()
    with make_loader(graph, make_service(2, 2)) as loader:
        assert [repr(item) for item in loader] == expected[0]
        assert loader.reading_service.restarts == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("number", [0, 29, 59])
def test_L4_a_death_in_the_dispatcher(how: str, number: int, tmp_path: Path) -> None:
    graph = IterableWrapper(range(60)).shuffle(buffer_size=9).map(DieOnce(tmp_path, number, how))
    graph = graph.sharding_round_robin_dispatch().shuffle(buffer_size=3)
    (tmp_path / "died").touch()
    expected = oracle(graph, 2, epochs=1)
    (tmp_path / "died").unlink()
    with make_loader(graph, make_service(2, 2)) as loader:
        assert [repr(item) for item in loader] == expected[0]
        assert loader.reading_service.restarts == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["SIGKILL", "exit 0"])
def test_L4_a_dispatched_item_that_kills_again_and_again_is_named(how: str, tmp_path: Path) -> None:
    graph = IterableWrapper(range(60)).map(AlwaysDie(tmp_path, 31, how)).sharding_round_robin_dispatch()
    got = []
    with make_loader(graph, make_service(2, 2)) as loader:
        code = how[-1] if how.startswith("exit") else how
        expected = rf"(?s)dispatcher \(pid \d+\).*{code}.*item 31 of the dispatched stream.*AlwaysDie.*died [3-9] times"
        with pytest.raises(WorkerDiedError, match=expected):
            for item in loader:
                got.append(item)
        assert got == list(range(31))


@pytest.mark.parametrize("how", WAYS)
def test_L4_a_position_that_kills_again_and_again_is_named(how: str, tmp_path: Path) -> None:
    graph = IterableWrapper(range(60)).sharding_filter().map(AlwaysDie(tmp_path, 31, how))
    got = []
    with make_loader(graph, make_service(2, 2)) as loader:
        code = how[-1] if how.startswith("exit") else how
        with pytest.raises(
            WorkerDiedError, match=rf"(?s)worker 1 \(pid \d+\).*{code}.*item 15 of shard 1.*AlwaysDie.*died [3-9] times"
        ):
            for item in loader:
                got.append(item)
        assert got == list(range(31))  # all that was before it
        assert loader.state_dict()["delivered"] == 31


@pytest.mark.parametrize("spec", [RICH, DISPATCHED], ids=["sharding_filter", "dispatcher"])
def test_L4_a_stopped_process_is_found_by_its_heartbeat(spec: GraphSpec) -> None:
    expected = oracle(spec, 2, epochs=1)
    with make_loader(spec, make_service(2, 2, timeout=1.0, worker_prefetch_cnt=2)) as loader:
        got = []
        for index, item in enumerate(loader):
            got.append(repr(item))
            if index in (0, 12):
                kill(pids(loader)[index % 2], signal.SIGSTOP)  # with a dispatcher, that is the first
        assert got == expected[0]


def test_L4_deaths_between_epochs() -> None:
    expected = oracle(RICH, 2, epochs=3)
    with make_loader(RICH, make_service(2, 2)) as loader:
        for epoch in expected:
            assert [repr(item) for item in loader] == epoch
            for pid in pids(loader):
                kill(pid, signal.SIGKILL)


def test_L4_a_death_after_a_resume() -> None:
    first, _ = oracle(RICH, 2)
    with make_loader(RICH, make_service(2, 2)) as loader:
        iterator = iter(loader)
        for _ in range(9):
            next(iterator)
        state = loader.state_dict()
    with make_loader(RICH, make_service(2, 2, worker_prefetch_cnt=2)) as loader:
        loader.load_state_dict(state)
        got = []
        for index, item in enumerate(loader):
            got.append(repr(item))
            if index == 0:
                for pid in pids(loader):
                    kill(pid, signal.SIGKILL)
        assert got == first[9:]


def hang_at_seven(item: int) -> int:
    if item == 7:
        threading.Event().wait()  # a read from a network that never answers: the process itself is well
    return item


def test_L4_an_item_that_hangs_is_an_error_that_names_it() -> None:
    graph = IterableWrapper(range(12)).sharding_filter().map(hang_at_seven)
    with make_loader(graph, make_service(1, 1, timeout=0.4, on_worker_death=Restart(max_deaths=2))) as loader:
        found = []
        with pytest.raises(WorkerDiedError, match=r"item 7 of shard 0.*: it has died 2 times here"):
            found.extend(iter(loader))
        assert found == list(range(7))


def hang(*_: Any) -> Any:
    threading.Event().wait()


class HangsElsewhere:
    """As a dataset that opens a file when it is rebuilt, in a process that cannot have it."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if os.getpid() != self.pid:
            hang()

    def __call__(self, item: int) -> int:
        return item


class HangsAtAnEnd:
    """A source whose pass cannot be closed."""

    def __iter__(self) -> Iterator[int]:
        try:
            yield from range(10**6)
        finally:
            hang()


class HangsAgain:
    """Hangs where it makes item 3 once more: `path` has a line for each time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, item: int) -> int:
        time.sleep(0.01)
        if item == 3:
            with self.path.open("a+") as file:
                file.write("made\n")
            if len(self.path.read_text().splitlines()) > 1:
                hang()
        return item


@pytest.mark.parametrize(
    ("where", "dispatched"),
    [
        ("what it is given", False),
        ("what it is given", True),
        ("worker_init_fn", False),
        ("worker_reset_fn", False),
        ("items made again", False),
        ("items made again", True),
    ],
)
def test_L4_a_worker_that_hangs_before_it_makes_an_item_is_an_error(
    where: str, dispatched: bool, tmp_path: Path
) -> None:
    graph: Any = IterableWrapper(range(400))
    if where == "what it is given":
        graph = graph.map(HangsElsewhere())
    elif where == "items made again":
        graph = graph.map(HangsAgain(tmp_path / "made"))
    graph = graph.sharding_round_robin_dispatch() if dispatched else graph.sharding_filter()
    functions = {where: hang} if where.startswith("worker") else {}
    service: Any = make_service(
        1, 1, every=10**6, timeout=0.4, on_worker_death=Restart(max_deaths=2), worker_prefetch_cnt=1, **functions
    )
    with make_loader(graph, service) as loader:
        found: list[int] = []
        with pytest.raises(WorkerDiedError, match=r"made no progress within the timeout.*: it has died 2 times here"):
            for item in loader:
                found.append(item)
                if item == 9:
                    kill(pids(loader)[0], signal.SIGKILL)
        assert found == list(range(len(found)))
        assert where != "items made again" or len(found) >= 10


def test_L4_a_worker_that_hangs_as_an_epoch_ends_is_replaced() -> None:
    graph = IterableWrapper(HangsAtAnEnd()).sharding_filter()
    with make_loader(graph, make_service(1, 1, timeout=0.4, on_worker_death=Restart(max_deaths=2))) as loader:
        for _ in range(3):
            stream = iter(loader)
            assert [next(stream) for _ in range(5)] == list(range(5))


def takes_its_time(item: int) -> int:
    time.sleep(0.1)
    return item


@pytest.mark.parametrize("dispatched", [False, True])
def test_L4_a_replay_that_gets_on_may_take_longer_than_the_timeout(dispatched: bool) -> None:
    graph = IterableWrapper(range(18)).map(takes_its_time)
    graph = graph.sharding_round_robin_dispatch() if dispatched else graph.sharding_filter()
    service: Any = make_service(1, 1, every=10**6, timeout=1.0)
    with make_loader(graph, service) as loader:
        found = []
        for item in loader:
            found.append(item)
            if item == 14:
                kill(pids(loader)[0], signal.SIGKILL)
        assert found == list(range(18))
        assert service.restarts == 1
