"""L4, recovery: accidents end no run, however many there are; one that really kills is named in their midst."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.laws.executors import make_loader, make_service, oracle, pids
from tests.laws.storm_graphs import GRAPHS, linger
from tests.laws.test_L4_recovery import RICH, AlwaysDie, kill
from torchpipe.errors import WorkerDiedError
from torchpipe.iter import IterableWrapper


@contextmanager
def storm(
    loader: Any, gap_s: Callable[[], float], most: int = 1 << 30, victims: Callable[[Any], list[int]] = pids
) -> Iterator[Callable[[], int]]:
    """A thread kills one of the loader's processes, whatever it is at, every ``gap_s()``: how many so far."""
    rng, over, killed = random.Random(7), threading.Event(), [0]

    def kill_on() -> None:
        while killed[0] < most and not over.wait(gap_s()):
            running = victims(loader)
            if running:
                kill(rng.choice(running), signal.SIGKILL)
                killed[0] += 1

    killer = threading.Thread(target=kill_on)
    killer.start()
    try:
        yield lambda: killed[0]
    finally:
        over.set()
        killer.join()


def every(seconds: float) -> Callable[[], float]:
    return lambda: seconds


def sometimes() -> float:
    return random.uniform(1, 4)


BY_START_METHOD = {"fork": (every(0.05), 40), "forkserver": (every(0.05), 40), "spawn": (sometimes, 2)}
STORMS = [(graph, context) for graph in GRAPHS for context in ("fork", "forkserver")] + [("dispatcher", "spawn")]


def outlast(
    graph: Any, context: str, gap_s: Callable[[], float], kills: int, victims: Callable[[Any], list[int]] = pids
) -> None:
    """Epoch after epoch, until so many kills have struck: with what deaths are allowed by default."""
    expected = oracle(graph, 3)
    with (
        make_loader(graph, make_service(2, 3, context=context)) as loader,
        storm(loader, gap_s, kills, victims) as killed,
    ):
        number = 0
        while killed() < kills:
            loader.set_epoch(number)
            assert [repr(item) for item in loader] == expected[number]
            number = (number + 1) % len(expected)


@pytest.mark.parametrize(("graph", "context"), STORMS)
def test_L4_a_storm_of_kills_ends_no_run(graph: str, context: str) -> None:
    outlast(GRAPHS[graph](), context, *BY_START_METHOD[context])


@pytest.mark.parametrize("graph", GRAPHS)
def test_L4_a_storm_of_kills_within_items_ends_no_run(graph: str) -> None:
    """Slow items, made while processes are killed all the time: two kills in a row at one item are nothing special."""
    outlast(GRAPHS[graph](linger), "fork", every(0.05), 40)


@pytest.mark.parametrize("how", ["SIGSEGV", "exit 1", "SIGKILL"])
@pytest.mark.parametrize("dispatched", [False, True], ids=["sharding_filter", "dispatcher"])
def test_L4_one_that_kills_is_named_in_the_midst_of_a_storm(dispatched: bool, how: str, tmp_path: Path) -> None:
    source: Any = IterableWrapper(range(40))
    die = AlwaysDie(tmp_path, 21, how)
    graph = source.map(die).sharding_round_robin_dispatch() if dispatched else source.sharding_filter().map(die)
    got = []
    where = r"item 21 of the dispatched stream" if dispatched else r"item 10 of shard 1"
    # It passes: on a machine where each death is noticed late, what kills is told from chance only after that
    with make_loader(graph, make_service(2, 2)) as loader, storm(loader, every(1.0), most=5):
        with pytest.raises(WorkerDiedError, match=rf"(?s)while making {where}.*AlwaysDie.*it has died \d+ times here"):
            for item in loader:
                got.append(item)
        assert got == list(range(21))


def test_L4_a_budget_of_restarts_ends_a_storm() -> None:
    expected, following = oracle(RICH, 2)
    service = make_service(2, 2, max_restarts=5)
    with make_loader(RICH, service) as loader:
        got: list[str] = []
        with pytest.raises(WorkerDiedError, match="one death more than max_restarts=5 allows"):
            while True:
                loader.set_epoch(0)
                got.clear()
                for item in loader:
                    got.append(repr(item))
                    kill(pids(loader)[0], signal.SIGKILL)
        assert got == expected[: len(got)]
        assert service.restarts == 5  # type: ignore[attr-defined]
        state = loader.state_dict()
    with make_loader(RICH, make_service(2, 2)) as loader:
        loader.load_state_dict(state)
        # After the last item, nothing was missing but a shard's word that it has no more: then the next epoch follows
        assert [repr(item) for item in loader] == (expected[len(got) :] or following)


@pytest.mark.parametrize("number", [0, 2], ids=["dispatcher", "worker"])
def test_L4_deaths_between_two_epochs_are_of_the_budget_too(number: int) -> None:
    """What is replaced when the next epoch begins counts as what is replaced in one; nobody is missed before that."""
    graph = IterableWrapper(range(9)).sharding_round_robin_dispatch()
    expected, got = oracle(graph, 2, epochs=4), []
    with make_loader(graph, make_service(2, 2, max_restarts=2)) as loader:
        for epoch in range(3):
            assert [repr(item) for item in loader] == expected[epoch]
            victim = pids(loader)[number]
            kill(victim, signal.SIGKILL)
            while victim in pids(loader):
                time.sleep(0.01)
        with pytest.raises(WorkerDiedError, match=rf"(?s)pid {victim}\).*one death more than max_restarts=2 allows"):
            for item in loader:
                got.append(repr(item))
        assert len(got) == (number > 0)  # the first item is not of the last worker
        assert loader.reading_service.restarts == 2  # type: ignore[attr-defined]
        loader.load_state_dict(loader.state_dict())
        assert got + [repr(item) for item in loader] == expected[3]


def die_while_starting(datapipe: Any, info: Any) -> Any:
    os._exit(3)


def test_L4_one_that_ends_itself_while_it_starts_is_no_accident() -> None:
    graph = IterableWrapper(range(9)).sharding_filter()
    with (
        make_loader(graph, make_service(1, 1, worker_init_fn=die_while_starting)) as loader,
        pytest.raises(
            WorkerDiedError, match=r"(?s)worker 0 \(pid \d+\) exited with code 3.*no item.*it has died 3 times here"
        ),
    ):
        next(iter(loader))
