"""The engine on workers in memory: whatever ends, is late or is resized, the stream is the oracle's (L1, L2, L4)."""

from __future__ import annotations

import random
import warnings
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from reading_services import Restart
from reading_services.engine.workers import DISPATCHER
from tests.engine.memory_pool import MemoryReadingService
from tests.laws.executors import make_loader, make_service, oracle
from tests.laws.graphs import GraphSpec, graph_specs
from tests.tries import tries
from torchpipe.errors import IteratorInvalidated, WorkerDiedError
from torchpipe.iter import IterableWrapper

SHARDS = 3
EPOCHS = 2
NUMBERS = st.integers(DISPATCHER, SHARDS - 1)


class Engine(RuleBasedStateMachine):
    """A loader on workers in memory, beside what in-process execution gives."""

    @initialize(spec=graph_specs(max_length=30), seed=st.integers(0, 1 << 16), workers=st.integers(1, SHARDS))
    def begin(self, spec: GraphSpec, seed: int, workers: int) -> None:
        self.spec, self.chance = spec, random.Random(seed)
        self.expected = oracle(spec, SHARDS, EPOCHS)
        self.epoch, self.found = 0, 0
        self.loader: Any = self._loader(workers)
        self.iterator: Any = iter(self.loader)

    def _loader(self, workers: int) -> Any:
        self.service = MemoryReadingService(
            workers, self.chance, num_shards=SHARDS, on_worker_death=Restart(max_deaths=10_000)
        )
        return make_loader(self.spec, self.service)

    @rule(count=st.integers(1, 12))
    def take(self, count: int) -> None:
        for _ in range(count):
            item = next(self.iterator, None)
            left = self.expected[self.epoch][self.found :]
            if item is None and not left:
                self.epoch, self.found = (self.epoch + 1) % EPOCHS, 0
                if self.epoch == 0:
                    self._anew(None)
                self.iterator = iter(self.loader)
                return
            assert left, f"one more: {item!r}"
            assert repr(item) == left[0]
            self.found += 1

    @rule(number=NUMBERS, own=st.booleans(), begun=st.booleans())
    def kill(self, number: int, own: bool, begun: bool) -> None:
        if self.service.pool is not None:
            self.service.pool.kill(number, own=own, begun=begun)

    @rule(number=NUMBERS)
    def leave(self, number: int) -> None:
        if self.service.pool is not None:
            self.service.pool.leave(number)

    @rule(hosts=st.lists(st.integers(0, SHARDS - 1), min_size=SHARDS, max_size=SHARDS))
    def assign(self, hosts: list[int]) -> None:
        current = self.service.workers
        if current is not None:
            current.assign({shard: number % current.num_workers for shard, number in enumerate(hosts)})

    @rule(workers=st.integers(1, SHARDS), window=st.sampled_from([None, 1, 2, 20]))
    def resize(self, workers: int, window: int | None) -> None:
        current = self.service.workers
        if current is not None and workers <= current.most:
            current.resize(workers, window)

    @rule(workers=st.integers(1, SHARDS))
    def resume(self, workers: int) -> None:
        state = self.loader.state_dict()
        self._anew(state, workers)
        self.iterator = iter(self.loader)

    @rule(workers=st.integers(1, SHARDS))
    def give_up_the_epoch(self, workers: int) -> None:
        if self.epoch + 1 < EPOCHS:
            self.epoch, self.found = self.epoch + 1, 0
            self.loader.set_epoch(self.epoch)  # left at its first item it would be no epoch
            self.iterator = iter(self.loader)

    def _anew(self, state: Any, workers: int = 2) -> None:
        self.loader.shutdown()
        self.loader = self._loader(workers)
        if state is not None:
            self.loader.load_state_dict(state)

    def teardown(self) -> None:
        if hasattr(self, "loader"):
            self.loader.shutdown()


TestEngine = pytest.mark.filterwarnings("ignore")(Engine.TestCase)
TestEngine.settings = settings(max_examples=tries(100), stateful_step_count=20, deadline=None)


def test_L1_without_faults_it_is_what_in_process_execution_gives() -> None:
    graph = IterableWrapper(range(20)).shuffle(buffer_size=5).sharding_round_robin_dispatch().map(str)
    for seed in range(20):
        service = MemoryReadingService(2, random.Random(seed), num_shards=SHARDS)
        with make_loader(graph, service) as loader:
            assert [[repr(item) for item in loader] for _ in range(2)] == oracle(graph, SHARDS)


def test_L4_a_successor_takes_over_before_a_place_ends() -> None:
    graph = IterableWrapper(range(60)).shuffle(buffer_size=5).sharding_round_robin_dispatch()
    service = MemoryReadingService(2, random.Random(3), num_shards=SHARDS)
    with make_loader(graph, service) as loader:
        found = []
        for number, item in enumerate(loader):
            found.append(repr(item))
            assert service.pool is not None
            service.pool.leave(number % 3 - 1)
        assert found == oracle(graph, SHARDS, 1)[0]
        assert service.restarts == 0
        assert next(service.pool.opened) > 6


def test_L1_only_shards_that_move_begin_anew() -> None:
    graph = IterableWrapper(range(300)).sharding_filter()
    service = MemoryReadingService(3, random.Random(1), num_shards=SHARDS)
    with make_loader(graph, service) as loader:
        stream = iter(loader)
        found = [next(stream) for _ in range(30)]
        pool, workers = service.pool, service.workers
        assert pool is not None
        assert workers is not None
        for change, moved in (
            (lambda: workers.resize(2), [2]),
            (lambda: workers.resize(2, 7), []),
            (lambda: workers.assign({0: 0, 1: 0, 2: 1}), [1, 2]),
            (lambda: workers.resize(3), [1, 2]),
        ):
            pool.begun.clear()
            change()
            found += [next(stream) for _ in range(30)]
            assert sorted(pool.begun) == moved
        assert found + list(stream) == list(range(300))


def test_L6_one_that_waits_for_its_restart_when_it_is_one_too_many_stays_away() -> None:
    graph = IterableWrapper(range(300)).sharding_filter()
    service = MemoryReadingService(3, random.Random(0), num_shards=3, on_worker_death=Restart(max_deaths=1000))
    with make_loader(graph, service) as loader:
        stream = iter(loader)
        found = [next(stream)]
        assert service.pool is not None
        assert service.workers is not None
        while 2 in service.pool.open_workers:  # until it has died where it got nowhere, and rests
            service.pool.kill(2, own=True, begun=False)
            found.append(next(stream))
        service.workers.resize(2)
        assert found + list(stream) == list(range(300))
        assert {*service.pool.open_workers} == {0, 1}


def fail_at_threes(item: int) -> int:
    if item % 10 == 3:
        raise ValueError("no threes")
    return item


@pytest.mark.parametrize("seed", range(8))
def test_L7_what_is_left_out_is_told_once_whoever_moves_or_ends(seed: int) -> None:
    graph = IterableWrapper(range(120)).sharding_filter().map(fail_at_threes).on_error("skip", budget=None)
    chance = random.Random(seed)
    service = MemoryReadingService(3, chance, num_shards=SHARDS, on_worker_death=Restart(max_deaths=10_000))
    with make_loader(graph, service) as loader:
        for _ in loader:
            assert service.workers is not None
            assert service.pool is not None
            match chance.randrange(6):
                case 0:
                    service.workers.resize(chance.randint(1, 3))
                case 1:
                    service.pool.kill(chance.randrange(3), own=False, begun=False)
        skips = [event.text for event in loader.stats().events if event.kind == "skip"]
    assert len(skips) == len(set(skips)) == 12


def exit_at_seven(item: int) -> int:
    if item == 7:
        raise SystemExit(1)
    return item


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("dispatched", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_L4_deaths_at_one_item_name_it(own: bool, dispatched: bool, seed: int) -> None:
    graph: Any = IterableWrapper(range(12))
    if dispatched:
        graph, where = graph.map(exit_at_seven).sharding_round_robin_dispatch(), "item 7 of the dispatched stream"
    else:
        graph, where = graph.sharding_filter().map(exit_at_seven), "item 3 of shard 1"
    service = MemoryReadingService(2, random.Random(seed), num_shards=2, on_worker_death=Restart(max_deaths=3))
    with make_loader(graph, service) as loader:
        found: list[int] = []
        with pytest.raises(WorkerDiedError, match=rf"while making {where}.*: it has died 3 times here"):
            for item in loader:
                found.append(item)
                assert service.pool is not None
                service.pool.own = own
        assert found == list(range(7))
        assert service.restarts >= 2


def test_L4_an_item_is_named_where_the_budget_ends_at_once() -> None:
    graph = IterableWrapper(range(12)).sharding_filter().map(exit_at_seven)
    policy = Restart(max_deaths=3, max_restarts=2)
    service = MemoryReadingService(1, random.Random(0), num_shards=1, on_worker_death=policy)
    with make_loader(graph, service) as loader:
        with pytest.raises(WorkerDiedError, match=r"item 7 of shard 0.*: it has died 3 times here"):
            list(loader)
        assert service.restarts == 2


def test_L4_accidents_that_began_nothing_end_no_run() -> None:
    graph = IterableWrapper(range(40)).sharding_filter()
    service = MemoryReadingService(2, random.Random(0), num_shards=2, on_worker_death=Restart(max_deaths=1))
    with make_loader(graph, service) as loader:
        for index, item in enumerate(loader):
            assert item == index
            assert service.pool is not None
            service.pool.kill(index % 2, own=False, begun=False)
        assert service.restarts > 5


@given(st.integers(0, 5), st.integers(0, 1 << 16))
def test_L4_the_budget_of_restarts_ends_a_run(budget: int, seed: int) -> None:
    graph = IterableWrapper(range(200)).sharding_filter()
    policy: Any = Restart(max_restarts=budget) if budget else "raise"
    service = MemoryReadingService(2, random.Random(seed), num_shards=2, on_worker_death=policy)
    with make_loader(graph, service) as loader:
        found = []
        with pytest.raises(WorkerDiedError, match=f"max_restarts={budget} allows"):
            for item in loader:
                found.append(item)
                assert service.pool is not None
                service.pool.kill(item % 2, own=False, begun=False)
        assert found == list(range(len(found)))
        assert service.restarts == budget


def test_L7_a_pull_that_is_interrupted_says_so() -> None:
    graph = IterableWrapper(range(40)).sharding_filter()
    service = MemoryReadingService(1, random.Random(0), num_shards=1)
    with make_loader(graph, service) as loader, warnings.catch_warnings():
        iterator = iter(loader)
        next(iterator)
        assert service.workers is not None
        service.workers.interrupt()
        with pytest.raises(IteratorInvalidated, match="closed from another thread"):
            list(iterator)


def test_states_move_between_workers_in_memory_and_processes() -> None:
    graph = IterableWrapper(range(30)).shuffle(buffer_size=7).sharding_round_robin_dispatch().shuffle(buffer_size=4)
    expected = oracle(graph, SHARDS, 1)[0]
    found: list[str] = []
    state = None
    services = [MemoryReadingService(2, random.Random(1), num_shards=SHARDS), make_service(2, SHARDS)]
    for service, count in zip([*services, make_service(None, SHARDS)], (9, 8, 99)):
        with make_loader(graph, service) as loader:
            if state is not None:
                loader.load_state_dict(state)
            iterator = iter(loader)
            found += [repr(item) for item in islice(iterator, count)]
            state = loader.state_dict()
    assert found == expected
