"""How the number of workers is chosen: against machines that are pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from reading_services.engine.policies import Autotune, Choice, Interval, Tuner
from reading_services.engine.workers import WorkerCounters
from torchpipe.execution.limits import WorkerLimits
from torchpipe.stats import Budget
from torchpipe.stats.sheet import Times


@dataclass(frozen=True)
class Machine:
    """An item takes ``item_s`` of a worker, of which ``cpu`` on a core, and ``loop_s`` of the loop."""

    item_s: float = 0.1
    loop_s: float = 0.001
    cpu: float = 0.0
    cores: float = 64
    most_per_s: float = 1e9  # of what all workers share: a disk
    worker_bytes: int = 100

    def interval(self, workers: int, window: int) -> Interval:
        at_work = min(workers, self.cores / self.cpu) if self.cpu else workers
        makes, takes = min(at_work / self.item_s, self.most_per_s), 1 / self.loop_s
        rate = min(makes, takes)
        busy = 1.0 if makes <= takes else rate * self.item_s / workers
        return Interval(
            seconds=1.0,
            items=round(rate),
            waited=1 - rate * self.loop_s,
            busy=busy,
            held_back=1 - busy,
            worker_cores=self.cpu * at_work / workers * busy,
            own_cores=0.0,
            memory_bytes=self.worker_bytes * window,
        )


def settled(machine: Machine, budget: Budget, most: int = 32, first: int = 2) -> list[int]:
    """The numbers of workers that are tried, ending with the one that is kept."""
    tuner, choice = Tuner(budget, most), Choice(first, 2)
    tried = [first]
    for _ in range(40):
        choice = tuner.choose(choice, machine.interval(choice.workers, choice.window))
        tried.append(choice.workers)
    assert len(set(tried[-20:])) == 1, f"it never rests: {tried}"
    return tried


ROOM = Budget(cores=64, memory_bytes=10**9)


def test_as_many_as_the_loop_needs() -> None:
    needed = settled(Machine(item_s=0.1, loop_s=0.01), ROOM)[-1]  # ten keep up
    assert 10 <= needed <= 13


def test_no_more_than_there_may_be() -> None:
    assert settled(Machine(), ROOM, most=6)[-1] == 6


def test_a_loop_that_never_waits_gives_workers_back() -> None:
    assert settled(Machine(item_s=0.1, loop_s=0.2), ROOM, first=8)[-1] == 1


def test_what_more_workers_do_not_help_is_taken_back() -> None:
    tried = settled(Machine(most_per_s=25), ROOM, first=4)
    assert max(tried) == 8
    assert tried[-1] == 4


def test_the_cores_of_the_budget_are_kept() -> None:
    assert settled(Machine(cpu=1.0), Budget(cores=3, memory_bytes=10**9))[-1] == 3


def test_the_memory_of_the_budget_is_kept() -> None:
    machine = Machine(worker_bytes=100)
    assert settled(machine, Budget(cores=64, memory_bytes=1000))[-1] == 5  # a window of two each
    assert settled(machine, Budget(cores=64, memory_bytes=1000), first=16)[-1] == 5
    assert settled(machine, Budget(cores=64, memory_bytes=1))[-1] == 1  # one there has to be


def test_one_that_waits_now_and_then_runs_further_ahead() -> None:
    seen = Interval(
        seconds=1.0, items=50, waited=0.2, busy=0.4, held_back=0.3, worker_cores=0.4, own_cores=0.5, memory_bytes=10
    )
    choice = Tuner(ROOM, 8).choose(Choice(2, 4), seen)
    assert (choice.workers, choice.window) == (2, 8)
    assert Tuner(Budget(cores=4, memory_bytes=30), 8).choose(Choice(2, 4), seen).window == 4


def test_what_could_not_be_opened_is_no_step_that_brought_nothing() -> None:
    machine, tuner, now = Machine(), Tuner(ROOM, 8), Choice(2, 2)
    assert tuner.choose(now, machine.interval(2, 2)).workers == 4
    tuner.refused()
    assert tuner.choose(now, machine.interval(2, 2), room=2).workers == 2
    assert tuner.choose(now, machine.interval(2, 2)).workers == 4


@pytest.mark.parametrize("value", [0, -1, True, "2", float("nan")])
def test_a_budget_is_a_positive_number(value: object) -> None:
    with pytest.raises(ValueError, match="positive"):
        Budget(cores=value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positive"):
        Budget(memory_bytes=value)  # type: ignore[arg-type]


def test_a_budget_is_filled_with_what_there_is() -> None:
    filled = Budget(cores=3).filled()
    assert filled.cores == 3
    assert (filled.memory_bytes or 0) > 2**20


class _Workers:
    """What Autotune sees of so many workers, of which each has been at work for half the time."""

    def __init__(self) -> None:
        self.num_workers, self.all_ready, self.at = 2, True, 0.0
        self.limits = WorkerLimits(window=2)

    def counters(self) -> dict[int, WorkerCounters]:
        return {number: WorkerCounters(Times(), pid=number + 1) for number in range(self.num_workers)}


def test_room_that_was_found_makes_the_next_refusal_a_first_one_again() -> None:
    tune, workers = Autotune(ROOM, 8), _Workers()

    def look() -> None:
        workers.at += 2.0
        for _ in range(20):
            tune.pulled(100, 0.1)
        tune.before_pull(workers, workers.at, ())  # type: ignore[arg-type]

    rests = []
    for _ in range(3):
        tune.refused(2, workers.at)
        rests.append(tune._rest.until - workers.at)
        look()
    assert rests == [60, 120, 240]
    workers.num_workers = 4
    look()
    tune.refused(4, workers.at)
    assert tune._rest.until - workers.at == 60
