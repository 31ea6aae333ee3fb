"""Who hosts which shards, and what if a worker is late: on workers that start late or never, and are fast or slow."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reading_services import Restart
from reading_services.engine.policies import Autotune, Balancer, apportion, moved
from reading_services.engine.policy import Change, Hosting, Policy
from reading_services.engine.workers import DISPATCHER
from tests.engine.memory_pool import NEVER, MemoryReadingService
from tests.laws.executors import make_loader, make_service, oracle
from torchpipe.iter import IterableWrapper
from torchpipe.stats import Budget

SPEEDS = st.dictionaries(st.integers(0, 9), st.floats(0.1, 100), min_size=1, max_size=6)


@given(st.integers(0, 60), SPEEDS)
def test_every_shard_is_hosted_and_nobody_takes_longer_than_needed(shards: int, speeds: dict[int, float]) -> None:
    counts = apportion(shards, speeds)
    assert sum(counts.values()) == shards
    assert set(counts) == set(speeds)
    slowest = max(count / speeds[number] for number, count in counts.items())
    for number, count in counts.items():  # one shard of whoever takes longest, moved to any other, brings nothing
        assert (count + 1) / speeds[number] >= slowest or count / speeds[number] == slowest


def test_a_place_of_a_third_of_the_speed_gets_a_third_of_the_shards() -> None:
    assert apportion(14, {0: 33.0, 1: 100.0, 2: 100.0}) == {0: 2, 1: 6, 2: 6}


@given(st.lists(st.integers(0, 4), max_size=30), SPEEDS)
def test_no_more_shards_move_than_must(workers: list[int], speeds: dict[int, float]) -> None:
    hosts = dict(enumerate(workers))
    counts = apportion(len(hosts), speeds)
    after = moved(hosts, counts)
    assert set(after) == set(hosts)
    assert {number: list(after.values()).count(number) for number in counts} == counts
    stay = sum(min(workers.count(number), count) for number, count in counts.items())
    assert sum(hosts[shard] == after[shard] for shard in hosts) == stay


def plain(length: int) -> Any:
    return IterableWrapper(range(length)).sharding_filter().map(str)


def shuffled(length: int) -> Any:
    return IterableWrapper(range(length)).shuffle(buffer_size=5).sharding_filter()


def dispatched(length: int) -> Any:
    return IterableWrapper(range(length)).shuffle(buffer_size=5).sharding_round_robin_dispatch().map(str)


@dataclass(frozen=True)
class Case:
    """Drawn from a seed: what runs, where, and what is wrong with these workers."""

    graph: Any
    length: int
    shards: int
    workers: int
    balances: bool
    tunes: bool
    starts: dict[int, float]
    speeds: dict[int, float]
    kills: bool
    elsewhere: dict[int, float]
    chance: random.Random

    @classmethod
    def of(cls, seed: int) -> Case:
        chance = random.Random(seed)
        shards = chance.randint(1, 6)
        workers = chance.randint(1, min(3, shards))
        numbers = range(DISPATCHER, workers)
        return cls(
            graph=chance.choice([plain, shuffled, dispatched]),
            length=chance.choice([0, 1, 2, 4, 7, 20, 60]),
            shards=shards,
            workers=workers,
            balances=chance.random() < 0.8,
            tunes=chance.random() < 0.4,
            starts={number: chance.choice([0.0, 0.0, 0.0, 1.0, 7.0, 30.0, NEVER]) for number in numbers},
            speeds={number: chance.choice([1.0, 1.0, 0.2]) for number in numbers},
            kills=chance.random() < 0.3,
            elsewhere={number: chance.choice([0.0, 4.0, NEVER]) for number in numbers if chance.random() < 0.3},
            chance=chance,
        )

    def service(self) -> MemoryReadingService:
        policies: list[Policy] = [Autotune(Budget(cores=64, memory_bytes=1 << 40), self.workers)] if self.tunes else []
        return MemoryReadingService(
            self.workers,
            self.chance,
            policies=[*policies, Balancer()] if self.balances else policies,
            of_pool={
                "starts": self.starts,
                "elsewhere": self.elsewhere,
                "speeds": self.speeds,
                "start_timeout_s": 20.0,
                "step_s": 0.05,
            },
            num_shards=self.shards,
            on_worker_death=Restart(max_deaths=10_000),
        )

    @property
    def may_fail(self) -> bool:
        """Is there a worker whose work nobody else can do in time?"""
        late = {number for number, start in (self.starts | self.elsewhere).items() if start > 20}
        if self.graph is dispatched and DISPATCHER in late:
            return True
        late.discard(DISPATCHER)
        return bool(late) and (not self.balances or len(late) == self.workers)


@pytest.mark.filterwarnings("ignore:a state was saved")
@pytest.mark.parametrize("part", range(20))
def test_L7_whoever_starts_late_or_never_or_dies_the_stream_goes_on_or_says_why(part: int) -> None:
    for seed in range(20 * part, 20 * part + 20):
        case = Case.of(seed)
        graph = case.graph(case.length)
        expected = oracle(graph, case.shards)
        with make_loader(graph, case.service()) as loader:
            service: Any = loader.reading_service
            for epoch in range(2):
                found: list[str] = []
                try:
                    for item in loader:
                        found.append(repr(item))
                        if case.kills and case.chance.random() < 0.05:
                            service.pool.kill(case.chance.randrange(case.workers), own=False, begun=False)
                except TimeoutError as error:
                    assert case.may_fail, (seed, str(error))
                    with make_loader(graph, make_service(None, case.shards)) as other:
                        other.load_state_dict(loader.state_dict())
                        found += map(repr, other)
                assert found == expected[epoch], seed


def test_L7_where_nobody_may_take_its_shards_a_place_that_never_starts_is_an_error() -> None:
    service = MemoryReadingService(
        2, random.Random(0), num_shards=4, of_pool={"starts": {1: NEVER}, "start_timeout_s": 5.0}
    )
    with make_loader(plain(20), service) as loader:
        for _ in range(2):  # the next epoch starts it anew
            with pytest.raises(TimeoutError, match="worker 1 has not started"):
                list(loader)
            assert service.workers is not None


class Wishes(Policy):
    """Begins with two workers and wishes for four, once more after each refusal."""

    def __init__(self) -> None:
        self.refusals: list[int] = []
        self.asked = 0

    def first_workers(self, most: int) -> int:
        return 2

    def fewest_workers(self, most: int) -> int:
        return 1

    def before_pull(self, hosting: Hosting, now: float, late: Collection[int]) -> Change | None:
        if self.asked > len(self.refusals):
            return None
        self.asked += 1
        return Change(workers=4, window=9, why="as a test wishes") if self.asked < 4 else None

    def refused(self, workers: int, now: float) -> None:
        self.refusals.append(workers)


@pytest.mark.parametrize("kind", [plain, dispatched])
def test_L7_workers_that_cannot_be_opened_leave_all_as_it_was(kind: Any) -> None:
    wishes = Wishes()
    opened = 4 if kind is dispatched else 3
    service = MemoryReadingService(4, random.Random(2), policies=[wishes], of_pool={"room": opened}, num_shards=4)
    graph = kind(80)
    with make_loader(graph, service) as loader:
        assert [repr(item) for item in loader] == oracle(graph, 4, 1)[0]
        assert wishes.refusals == [2, 2, 2]
        assert service.workers is not None
        assert service.pool is not None
        assert (service.workers.num_workers, service.workers.limits.window) == (2, 10)
        assert {*service.pool.open_workers} == {0, 1} | ({DISPATCHER} if kind is dispatched else set())
        told = [event.text for event in loader.stats().events if "Too many open files" in event.text]
        assert len(told) == 3
        with pytest.raises(OSError, match="Too many open files"):
            service.workers.resize(4)
        assert service.workers.num_workers == 2


@pytest.mark.parametrize("never", [{2}, {3}, {2, 3}, {1}, {0, 3}])
def test_L7_workers_that_nobody_has_asked_for_are_let_go_of_where_they_find_no_room(never: set[int]) -> None:
    wishes = Wishes()
    of_pool = {"starts": dict.fromkeys(never, NEVER), "start_timeout_s": 5.0, "step_s": 0.05}
    service = MemoryReadingService(4, random.Random(3), policies=[wishes], of_pool=of_pool, num_shards=4)
    graph = plain(60)
    with make_loader(graph, service) as loader:
        found: list[str] = []
        try:
            found.extend(map(repr, loader))
        except TimeoutError:
            assert 0 in never  # there has to be one
        else:
            assert found == oracle(graph, 4, 1)[0]
            assert service.workers is not None
            assert 1 <= service.workers.num_workers < 4
        assert wishes.refusals
        assert any("has not started in time" in event.text for event in loader.stats().events)


@pytest.mark.parametrize("kind", [plain, dispatched])
def test_L7_one_that_finds_no_room_where_it_was_put_starts_elsewhere(kind: Any) -> None:
    starts = {DISPATCHER: NEVER, 1: NEVER, 2: 3.0}
    of_pool = {"starts": starts, "elsewhere": {DISPATCHER: 1.0, 1: 1.0}, "start_timeout_s": 30.0, "step_s": 0.05}
    service = MemoryReadingService(3, random.Random(4), of_pool=of_pool, num_shards=6)
    graph = kind(90)
    with make_loader(graph, service) as loader:
        assert [[repr(item) for item in loader] for _ in range(2)] == oracle(graph, 6)
        assert service.restarts == 0
        assert service.pool is not None
        assert next(service.pool.opened) == (6 if kind is dispatched else 4)


def test_an_epoch_begins_as_balanced_as_the_one_before_was() -> None:
    speeds = {0: 0.2, 1: 1.0, 2: 1.0}
    service = MemoryReadingService(
        3, random.Random(1), policies=[Balancer()], of_pool={"speeds": speeds, "step_s": 0.05}, num_shards=12
    )
    with make_loader(plain(1500), service) as loader:
        begun: list[list[int]] = []
        for _ in range(3):
            for number, _ in enumerate(loader):
                if number == 0:
                    assert service.workers is not None
                    hosts = [*service.workers.hosts(all_shards=True).values()]
                    begun.append([hosts.count(worker) for worker in range(3)])
    assert begun[0] == [4, 4, 4]
    assert all(counts[0] <= 2 for counts in begun[1:])
