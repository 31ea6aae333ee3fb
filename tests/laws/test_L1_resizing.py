"""L1 with another number of processes in mid-stream: the shards stay, and so do the items and their order."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import signal
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reading_services import MultiProcessingReadingService
from reading_services.engine import policies
from reading_services.engine.policies import Choice, Tuner
from tests.laws.executors import make_loader, make_service, oracle, pids
from tests.laws.graphs import GraphSpec
from tests.laws.interrupts import Interrupt, Interrupter, before_first
from tests.laws.test_L1_one_stream import RICH
from tests.sources import wait_until
from tests.tries import tries
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper
from torchpipe.stats import Budget

_PROCESSES = "reading_services.processes."
_PLACES = (
    "reading_services.engine",
    *(_PROCESSES + name for name in ("pool", "process", "signals", "stopping")),
)


def resized(graph: GraphSpec, steps: dict[int, int], num_shards: int = 4) -> list[list[str]]:
    """Two epochs, in which there are ``steps[i]`` processes from item i on."""
    service = make_service(num_shards, num_shards)
    assert isinstance(service, MultiProcessingReadingService)
    with make_loader(graph, service) as loader:
        epochs = []
        for _ in range(2):
            epochs.append([])
            for index, item in enumerate(loader):
                epochs[-1].append(repr(item))
                if index in steps:
                    assert service._workers is not None
                    service._workers.resize(steps[index])
        assert service._workers is not None
        wait_until(lambda: len(pids(loader)) <= num_shards + graph[3])
        assert service.restarts == 0
        return epochs


@pytest.mark.parametrize("dispatched", [False, True])
@given(st.dictionaries(st.integers(0, 30), st.integers(1, 4), min_size=1, max_size=4))
@settings(max_examples=tries(6))
def test_L1_another_number_of_processes_does_not_matter(dispatched: bool, steps: dict[int, int]) -> None:
    graph = (*RICH[:3], dispatched)
    assert resized(graph, steps) == oracle(graph, 4)


def test_L1_down_to_one_process_and_up_again_at_once() -> None:
    assert resized(RICH, {0: 1, 1: 4, 2: 1, 3: 2, 10: 1, 11: 3}) == oracle(RICH, 4)


@pytest.mark.nightly
def test_L2_an_interrupt_while_processes_begin_or_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """By ``Autotune``, whose choices are forced here: another number at each pull."""
    workers = itertools.cycle([1, 3, 2, 3])
    monkeypatch.setattr(policies, "_INTERVAL_S", 0.0)
    monkeypatch.setattr(policies, "_LEAST_CHUNKS", 1)
    monkeypatch.setattr(policies._Measured, "until", lambda *_: object())
    monkeypatch.setattr(Tuner, "choose", lambda self, now, seen, room: Choice(next(workers), now.window))
    (expected,) = oracle(RICH, 3, epochs=1)
    number, beyond = before_first(331), False
    while not beyond:
        number += 331
        service = MultiProcessingReadingService(3, "fork", num_shards=3, autotune=True, worker_prefetch_cnt=1)
        with make_loader(RICH, service) as loader:
            stream = iter(loader)
            got = list(itertools.islice(stream, 2))
            interrupter = Interrupter(number, _PLACES)
            try:
                for _ in range(4):
                    with interrupter:
                        item = next(stream)
                    got.append(item)
                beyond = True
            except Interrupt:
                pass
            state = loader.state_dict()
            delivered = state["delivered"]
            assert delivered in (len(got), len(got) + 1), interrupter.hit
            loader.load_state_dict(state)
            assert list(map(repr, got)) == expected[: len(got)]
            assert list(map(repr, loader)) == expected[delivered:], interrupter.hit
    assert number > 500


class Squares:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index * index


@pytest.mark.parametrize("in_order", [True, False])
def test_L1_a_dataloader_with_another_number_of_processes(in_order: bool) -> None:
    dataset: Any = Squares()
    with DataLoader(dataset, 2, num_workers=3, in_order=in_order) as loader:
        stream = iter(loader)
        received = []
        for number, batch in enumerate(stream):
            received.append(batch.tolist())
            if number in (0, 5, 9):
                stream._batches._workers.resize({0: 1, 5: 3, 9: 2}[number])  # type: ignore[attr-defined]
    expected = [batch.tolist() for batch in DataLoader(dataset, 2)]
    assert (received if in_order else sorted(received)) == expected


@pytest.mark.parametrize("left", [0, 5, 9, 13])
def test_L7_processes_that_cannot_be_opened_leave_all_as_it_was(left: int) -> None:
    service = make_service(4, 4)
    assert isinstance(service, MultiProcessingReadingService)
    with make_loader(RICH, service) as loader:
        stream = iter(loader)
        got = [next(stream)]
        workers = service._workers
        assert workers is not None
        workers.resize(2)
        got.append(next(stream))
        wait_until(lambda: len(pids(loader)) == 2)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = next(number for number in itertools.count(3) if not os.path.exists(f"/proc/self/fd/{number}"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + left, before[1]))
        try:
            with contextlib.suppress(OSError):
                workers.resize(4)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert len(service.worker_pids()) == workers.num_workers in (2, 4)
        assert left >= 9 or workers.num_workers == 2
        got += [next(stream)]
        workers.resize(4)
        got += stream
        assert list(map(repr, got)) == oracle(RICH, 4, epochs=1)[0]


def test_L6_those_that_are_too_many_end() -> None:
    service = make_service(4, 4)
    assert isinstance(service, MultiProcessingReadingService)
    with make_loader(RICH, service) as loader:
        stream = iter(loader)
        next(stream)
        assert service._workers is not None
        service._workers.resize(1)
        next(stream)
        wait_until(lambda: len(pids(loader)) == 1)
        assert service.stats().restarts == 0
        with pytest.raises(ValueError, match="1 to 4"):
            service._workers.resize(5)


class Slow:
    """Sleeps: so many workers as there are may do so at once."""

    def __call__(self, item: int) -> int:
        time.sleep(0.02)
        return item * 3


@pytest.mark.parametrize("dispatched", [False, True])
@given(st.dictionaries(st.integers(0, 30), st.integers(1, 4), min_size=1, max_size=3), st.data())
@settings(max_examples=tries(4))
def test_L4_a_death_beside_another_number_of_processes(
    dispatched: bool, steps: dict[int, int], data: st.DataObject
) -> None:
    graph = (*RICH[:3], dispatched)
    before = data.draw(st.booleans(), label="killed before the number changes")
    service = make_service(4, 4)
    assert isinstance(service, MultiProcessingReadingService)
    with make_loader(graph, service) as loader:
        received = []
        for index, item in enumerate(loader):
            received.append(repr(item))
            if index in steps:
                assert service._workers is not None
                if not before:
                    service._workers.resize(steps[index])
                pid = pids(loader)[data.draw(st.integers(0, 9), label="who dies") % len(pids(loader))]
                with contextlib.suppress(ProcessLookupError):  # one that was too many
                    os.kill(pid, signal.SIGKILL)
                if before:
                    service._workers.resize(steps[index])
    assert received == oracle(graph, 4, epochs=1)[0]


def test_L1_autotune_chooses_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "_INTERVAL_S", 0.2)
    graph = IterableWrapper(range(100_000)).sharding_filter().map(Slow())
    service = MultiProcessingReadingService(6, "fork", autotune=Budget(cores=2, memory_bytes=2**40))
    received = []
    with DataLoader2(graph, reading_service=service) as loader:
        for item in loader:
            received.append(item)
            if loader.stats().workers > 2:
                break  # the loop waits for nearly all of the time, and the workers do nothing else than work
        stats = loader.stats()
        assert stats.shards == 6
        assert 2 < stats.workers <= 6
        assert any(f"{stats.workers} of at most 6 workers" in event.text for event in stats.events)
        stream = iter(loader)  # the next epoch begins with what was chosen
        next(stream)
        assert loader.stats().workers == stats.workers
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(1, "fork", num_shards=6)) as plain:
        plain.seed(0)
        assert received == list(itertools.islice(plain, len(received)))


@pytest.mark.parametrize("value", [1, "yes", None])
def test_what_autotune_may_be(value: object) -> None:
    with pytest.raises(TypeError, match="autotune must be"):
        MultiProcessingReadingService(2, autotune=value)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="autotune must be"):
        DataLoader(Squares(), num_workers=2, autotune=value)  # type: ignore[arg-type]


def test_autotune_needs_processes() -> None:
    dataset: Any = Squares()
    with pytest.raises(ValueError, match="num_workers=0 starts none"):
        MultiProcessingReadingService(0, autotune=True)
    with pytest.raises(ValueError, match="num_workers=0 starts none"):
        DataLoader(dataset, autotune=True)
    with pytest.raises(ValueError, match="worker_method='thread' has none"):
        DataLoader(dataset, num_workers=2, worker_method="thread", autotune=True)
