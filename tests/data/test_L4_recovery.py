"""L4 through ``DataLoader``: killed workers change nothing, and a batch that kills each worker is named."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reading_services import Restart
from tests.data.datasets import Augmented, Killer, Lines, StatefulNumbers, StatefulSampler, epochs_of, text_of
from tests.exact import exact
from tests.tries import tries
from torchpipe import DataLoader
from torchpipe.errors import WorkerDiedError

WAYS = ("SIGKILL", "SIGSEGV", "SIGTERM", "exit 0", "exit 1")


def options_of(name: str) -> tuple[Any, dict[str, Any]]:
    """A dataset and what to give the loader besides."""
    generator = torch.Generator().manual_seed(6)
    return {
        "map-style": lambda: (Augmented(40), {"batch_size": 2, "shuffle": True, "generator": generator}),
        "stateful sampler": lambda: (Augmented(40), {"batch_size": 2, "sampler": StatefulSampler(40)}),
        "stateful dataset": lambda: (StatefulNumbers(40), {"batch_size": 2, "generator": generator}),
        "torch's seeding": lambda: (
            Augmented(40),
            {"batch_size": 2, "generator": generator, "worker_seeding": "torch"},
        ),
        "iterable": lambda: (Lines(40), {"batch_size": 2, "generator": generator}),
    }[name]()


def run(name: str, kills: list[tuple[int, int, str]], **more: Any) -> list[list[str]]:
    """Two epochs. ``kills``: before which batch, counted over both, which worker, and how."""
    data, options = options_of(name)
    found: list[list[str]] = []
    count = 0
    with torch.random.fork_rng(devices=[]), DataLoader(data, num_workers=2, **options, **more) as loader:
        torch.manual_seed(1)
        for _ in range(2):
            found.append([])
            for batch in loader:
                found[-1].append(exact(batch))
                count += 1
                for at, victim, how in kills:
                    if at == count and (running := loader.worker_pids()):
                        os.kill(running[victim % len(running)], getattr(signal, how))
    return found


NAMES = ("map-style", "stateful sampler", "stateful dataset", "torch's seeding", "iterable")
KILLS = st.lists(
    st.tuples(st.integers(1, 38), st.integers(0, 1), st.sampled_from(["SIGKILL", "SIGSEGV", "SIGTERM"])),
    min_size=1,
    max_size=5,
)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
@given(kills=KILLS, prefetch=st.integers(1, 3))
@settings(max_examples=tries(3), suppress_health_check=[HealthCheck.differing_executors])
def test_L4_kills_from_outside_change_nothing(name: str, kills: list[tuple[int, int, str]], prefetch: int) -> None:
    more = {"prefetch_factor": prefetch}
    assert run(name, kills, **more) == run(name, [], **more)


def test_L4_workers_that_persist_are_replaced() -> None:
    kills = [(3, 0, "SIGKILL"), (20, 1, "SIGKILL"), (25, 0, "SIGKILL")]
    assert run("map-style", kills, persistent_workers=True) == run("map-style", [], persistent_workers=True)


@given(
    deaths=st.lists(st.tuples(st.integers(0, 29), st.sampled_from(WAYS)), min_size=1, max_size=6),
    workers=st.integers(1, 3),
)
@settings(max_examples=tries(5))
def test_L4_datasets_that_kill_their_workers_once_change_nothing(
    deaths: list[tuple[int, str]], workers: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = str(tmp_path_factory.mktemp("deaths"))
    found = epochs_of(
        Killer(30, folder, tuple(deaths)),
        2,
        seed=3,
        batch_size=3,
        shuffle=True,
        num_workers=workers,
        on_worker_death=Restart(max_deaths=20),
    )
    assert found == epochs_of(Augmented(30), 2, seed=3, batch_size=3, shuffle=True)


def test_L4_a_storm_of_kills() -> None:
    """Every worker before every second batch."""
    storm = [(number, worker, "SIGKILL") for number in range(1, 20, 2) for worker in (0, 1)]
    assert run("map-style", storm) == run("map-style", [])


def test_L4_out_of_order_each_batch_comes_once() -> None:
    kills = [(number, number % 2, "SIGKILL") for number in (2, 5, 9, 15, 30)]
    found = run("map-style", kills, in_order=False)
    assert [sorted(epoch) for epoch in found] == [sorted(epoch) for epoch in run("map-style", [])]


@pytest.mark.parametrize("how", ["SIGKILL", "exit 0"])
def test_L4_a_batch_that_kills_every_worker_is_named(how: str, tmp_path: Any) -> None:
    data = Killer(20, str(tmp_path), ((9, how),), always=True)
    with DataLoader(data, 2, num_workers=2) as loader:
        iterator = iter(loader)
        assert [next(iterator)[0].tolist() for _ in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        with pytest.raises(WorkerDiedError) as caught:
            next(iterator)
        assert "[8, 9]" in text_of(caught.value)
        state = loader.state_dict()
        assert state["delivered"] == 4
    with DataLoader(Augmented(20), 2) as other:  # mended
        other.load_state_dict(state, allow_other_data=True)
        assert [batch[0].tolist() for batch in other][0] == [8, 9]


def test_L4_an_end_to_restarts() -> None:
    with DataLoader(Augmented(400), 2, num_workers=2, on_worker_death=Restart(max_restarts=1)) as loader:
        iterator = iter(loader)
        next(iterator)
        first = loader.worker_pids()[0]
        os.kill(first, signal.SIGKILL)
        while loader.worker_pids()[0] == first:
            next(iterator)
        os.kill(loader.worker_pids()[0], signal.SIGKILL)
        with pytest.raises(WorkerDiedError):
            list(iterator)


@pytest.mark.parametrize("data", [Augmented(400), Lines(400)], ids=["map-style", "iterable"])
def test_L4_deaths_are_errors_in_torchs_words_if_that_is_wanted(data: Any) -> None:
    with DataLoader(data, 2, num_workers=2, on_worker_death="raise") as loader:
        iterator = iter(loader)
        next(iterator)
        victim = loader.worker_pids()[1]
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=rf"DataLoader worker \(pid {victim}\) is killed by signal: Killed"):
            list(iterator)
        found = loader.state_dict()
    with DataLoader(data, 2, num_workers=2) as other:
        other.load_state_dict(found)
        assert next(iter(other)) is not None


@pytest.mark.parametrize("data", [Augmented(8), Lines(8)], ids=["map-style", "iterable"])
def test_L4_so_are_those_of_persistent_workers_between_two_epochs(data: Any) -> None:
    """torch's loader raises for them as well."""
    with DataLoader(data, 2, num_workers=2, persistent_workers=True, on_worker_death="raise") as loader:
        iterator = iter(loader)
        victim = iterator._workers[1]
        assert len(list(iterator)) == 4
        victim.kill()
        victim.join()
        with pytest.raises(RuntimeError, match=rf"DataLoader worker \(pid {victim.pid}\) is killed by signal: Killed"):
            list(loader)
        assert len(list(loader)) == 4


def test_L4_a_resumed_run_recovers_too() -> None:
    """State, kill, state, in the midst of an epoch of workers that have states of their own."""
    for name in ("map-style", "stateful dataset", "torch's seeding"):
        expected = run(name, [])[0]
        data, options = options_of(name)
        found: list[str] = []
        state: dict[str, Any] = {}
        for _ in range(3):
            options = options_of(name)[1]
            with DataLoader(data, num_workers=2, **options) as loader:
                loader.load_state_dict(state)
                if not state:
                    torch.manual_seed(1)
                iterator = iter(loader)
                for number in range(6):
                    found.append(exact(next(iterator)))
                    if number == 2:
                        os.kill(loader.worker_pids()[number % 2], signal.SIGKILL)
                state = loader.state_dict()
        assert found == expected[:18], name
