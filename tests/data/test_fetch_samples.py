"""``fetch="samples"``: whoever makes which sample, the batches, their order, draws and states are the same."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, get_worker_info

from reading_services import Restart
from tests.data.datasets import Augmented, Counting, FailingAt, Killer, Lines, Numbers, StatefulNumbers, epochs_of
from tests.exact import exact
from tests.measured import measured
from tests.sources import wait_until
from torchpipe import DataLoader
from torchpipe.data.fetch import Joining, PartSamples
from torchpipe.data.sharing import SharedWorkers
from torchpipe.errors import NotSerializableError, StateMismatchError, WorkerDiedError
from torchpipe.execution.shard import Chunk

LENGTH = 43
WAYS: dict[str, dict[str, Any]] = {
    "1": {"num_workers": 1},
    "3": {"num_workers": 3},
    "3, forkserver": {"num_workers": 3, "multiprocessing_context": "forkserver"},
    "2, far ahead": {"num_workers": 2, "prefetch_factor": 7},
    "2, device": {"num_workers": 2, "device": "cpu"},
    "2, measured": {"num_workers": 2, "measure": True},
}


class Slow(Augmented):
    """Samples that take long enough to be made one by one, some of them longer; each has a draw and an array."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02 if index % 10 == 3 else 0.004)
        return (*super().__getitem__(index), np.full(5000, index))


def drawing(samples: list[Any]) -> list[Any]:
    """Draws, and changes its argument."""
    samples.append(random.random())
    samples.reverse()
    return samples


def loader_of(data: Any = None, **options: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(7)
    options = {"batch_size": 6, "shuffle": True, "generator": generator, "collate_fn": drawing, **options}
    measure = options.pop("measure", False)
    return measured(DataLoader(Slow(LENGTH) if data is None else data, fetch="samples", **options), measure)


def taken(loader: DataLoader[Any], epochs: int = 1) -> list[str]:
    with loader:
        return [exact(batch) for _ in range(epochs) for batch in loader]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_any_way_makes_the_same_batches(way: dict[str, Any]) -> None:
    assert taken(loader_of(**way), 2) == taken(loader_of(), 2)


def test_workers_that_persist_make_the_same_batches() -> None:
    found = [taken(loader_of(num_workers=n, persistent_workers=True), 3) for n in (1, 3)]
    assert found[0] == found[1]


def test_each_sample_has_draws_of_its_own_however_long_it_takes() -> None:
    quick, slow = (taken(loader_of(kind(LENGTH), collate_fn=_draws, num_workers=2)) for kind in (Augmented, Slow))
    assert quick == slow
    assert len(set(quick)) == len(quick)
    with DataLoader(Augmented(LENGTH), batch_size=6, collate_fn=_draws) as by_batch:
        assert not {exact(batch) for batch in by_batch} & set(quick)


def _draws(samples: list[Any]) -> list[Any]:
    return [sample[1:4] for sample in samples]


def test_threads_make_the_same_batches() -> None:
    def run(**options: Any) -> list[str]:
        return taken(loader_of(Threaded(LENGTH), collate_fn=list, **options))

    assert run(num_workers=3, worker_method="thread") == run(num_workers=1, worker_method="thread") == run()


class Threaded(Numbers):
    """Draws from its worker's generators, and without one from the process's."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.004)
        info: Any = get_worker_info()
        rng = getattr(info, "rng", None)
        return index, random.random() if rng is None else rng.random_generator.random()


class Gated(Counting):
    """Sample 0 is made once somebody has written to ``gate``."""

    def __init__(self, length: int, folder: str, gate: Path) -> None:
        super().__init__(length, folder)
        self.gate = gate

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            self.gate.read_bytes()
        time.sleep(0.002)
        return super().__getitem__(index)


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_the_others_make_what_a_slow_sample_would_hold_up(method: Any, tmp_path: Path) -> None:
    """All of the window, the rest of its own batch too, but for what its worker has at hand already."""
    gate, made = tmp_path / "gate", tmp_path / "made"
    os.mkfifo(gate)
    made.mkdir()
    window = 2 * 2 * 8

    def open_the_gate() -> None:
        wait_until(lambda: len(list(made.iterdir())) >= window - 8)
        gate.write_bytes(b"go")

    opener = threading.Thread(target=open_the_gate)
    opener.start()
    with DataLoader(
        Gated(64, str(made), gate), batch_size=8, num_workers=2, fetch="samples", worker_method=method
    ) as loader:
        assert [batch.tolist() for batch in loader] == torch.arange(64).view(8, 8).tolist()
    opener.join()


@pytest.mark.parametrize("then", [0, 1, 2, 4])
def test_a_state_goes_on_under_another_number_of_workers(then: int) -> None:
    whole = taken(loader_of(), 2)
    each = -(-LENGTH // 6)
    for cut in (1, 4, each, each + 3):
        with loader_of(num_workers=3) as loader:
            batches = _endlessly(loader)
            assert [exact(next(batches)) for _ in range(cut)] == whole[:cut]
            state = json.loads(json.dumps(loader.state_dict()))
        with loader_of(num_workers=then) as other:
            other.load_state_dict(state)
            found = []
            while other.epoch < 2:
                found += [exact(batch) for batch in other]
        assert found == whole[cut:]


def _endlessly(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


@pytest.mark.parametrize(("saves", "loads"), [("samples", "batches"), ("batches", "samples")])
def test_a_state_says_what_draws_belong_to(saves: Any, loads: Any) -> None:
    def made(fetch: Any) -> DataLoader[Any]:
        return DataLoader(Augmented(LENGTH), batch_size=6, fetch=fetch, generator=torch.Generator().manual_seed(1))

    first = made(saves)
    for batches in (0, 2):
        stream = iter(first) if batches else iter(())
        for _ in range(batches):
            next(stream)
        state, other = first.state_dict(), made(loads)
        first.load_state_dict({})
        with pytest.raises(StateMismatchError, match=f"saved: fetch='{saves}'; here: fetch='{loads}'"):
            other.load_state_dict(state)
        assert list(map(exact, other)) == list(map(exact, made(loads)))


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSEGV", "exit 0"])
def test_a_worker_that_dies_at_a_sample_changes_nothing(how: str, tmp_path: Path) -> None:
    def run(folder: Path, **options: Any) -> list[str]:
        folder.mkdir()
        deaths = ((2, how), (17, how), (18, how), (42, how))
        return taken(loader_of(SlowKiller(LENGTH, str(folder), deaths), **options), 2)

    assert run(tmp_path / "a", num_workers=3) == run(tmp_path / "b")


class SlowKiller(Killer):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.004)
        return super().__getitem__(index)


@pytest.mark.parametrize("at", [0, 3, 11])
def test_workers_that_are_killed_from_outside_change_nothing(at: int) -> None:
    whole, found = taken(loader_of()), []
    with loader_of(num_workers=3) as loader:
        for number, batch in enumerate(loader):
            found.append(exact(batch))
            if number == at % 7:
                for pid in loader.worker_pids()[: 1 + at % 3]:
                    os.kill(pid, signal.SIGKILL)
    assert found == whole


def test_a_sample_that_ends_each_worker_is_named_in_its_turn(tmp_path: Path) -> None:
    data = SlowKiller(LENGTH, str(tmp_path), ((20, "SIGKILL"),), always=True)
    with loader_of(data, shuffle=False, num_workers=3, on_worker_death=Restart(max_deaths=2)) as loader:
        stream = iter(loader)
        assert [next(stream)[-1][0] for _ in range(3)] == [0, 6, 12]
        with pytest.raises(WorkerDiedError) as caught:
            next(stream)
    notes = "\n".join(caught.value.__notes__)
    assert "while it made the samples [20]" in notes
    assert "number 3, of [18, 19, 20, 21, 22, 23]" in notes


def test_a_worker_that_is_killed_while_idle_is_not_said_to_have_made_a_sample() -> None:
    with loader_of(Slow(4000), num_workers=2, on_worker_death=Restart(max_restarts=0)) as loader:
        stream = iter(loader)
        for _ in range(4):
            next(stream)
        wait_until(lambda: all(row.doing == "awaiting input" for row in loader.stats().processes[1:]))
        os.kill(loader.worker_pids()[0], signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="while idle") as caught:
            list(stream)
    assert not any("while it made" in note for note in caught.value.__notes__)


class Stuck(Counting):
    """Sample 0 takes longer than anybody waits."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(10 if index == 0 else 0.2)
        return super().__getitem__(index)


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_the_timeout_is_for_the_batch_whatever_else_comes(method: Any, tmp_path: Path) -> None:
    data = Stuck(64, str(tmp_path))
    with DataLoader(
        data, batch_size=8, num_workers=2, fetch="samples", timeout=1, worker_method=method, collate_fn=list
    ) as loader:
        with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
            next(iter(loader))
        assert len(list(tmp_path.iterdir())) < 2 * 2 * 8 - 8, "the other worker has made all it may before that"


def test_deaths_may_be_errors() -> None:
    with loader_of(num_workers=2, on_worker_death="raise") as loader:
        stream = iter(loader)
        next(stream)
        os.kill(loader.worker_pids()[0], signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="killed by signal"):
            list(stream)


def _stop() -> BaseException:
    return StopIteration("the user's")


def _value() -> BaseException:
    return ValueError("bad")


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize(("make_error", "raised"), [(_stop, RuntimeError), (_value, ValueError)])
@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_the_first_sample_that_fails_fails_its_batch_alone(
    workers: int, make_error: Any, raised: type[Exception], method: Any
) -> None:
    data = SlowlyFailing(20, (7, 6, 13), make_error)
    found: list[Any] = []
    with DataLoader(data, batch_size=5, num_workers=workers, fetch="samples", worker_method=method) as loader:
        stream = iter(loader)
        for _ in range(4):
            try:
                found.append(next(stream).tolist())
            except raised as error:
                found.append("\n".join((str(error), *error.__notes__)))
        assert next(stream, "over") == "over"
    assert found[0] == [0, 1, 2, 3, 4]
    assert found[3] == [15, 16, 17, 18, 19]
    for text, index, indices in ((found[1], 6, [5, 6, 7, 8, 9]), (found[2], 13, [10, 11, 12, 13, 14])):
        assert f"raised by dataset[{index}]" in text
        assert f"indices {indices}" in text


class SlowlyFailing(FailingAt):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.003)
        return super().__getitem__(index)


def where(samples: list[Any]) -> Any:
    info: Any = get_worker_info()
    return sorted({info.id, *(worker for _, worker in samples)}), os.getpid(), [index for index, _ in samples]


class Telling(Numbers):
    """Says which worker it is in."""

    def __getitem__(self, index: Any) -> Any:
        time.sleep(0.004)
        info: Any = get_worker_info()
        assert info.dataset is self
        return (type(index).__name__, int(index)), info.id


def test_samples_of_a_batch_are_made_by_several_and_put_together_in_a_worker() -> None:
    sampler = list(np.arange(36).reshape(4, 9))
    with DataLoader(Telling(36), batch_sampler=sampler, num_workers=2, fetch="samples", collate_fn=where) as loader:
        found = list(loader)
    assert [index for _, _, indices in found for index in indices] == [("int64", index) for index in range(36)]
    assert [0, 1] in [workers for workers, _, _ in found]
    assert os.getpid() not in {pid for _, pid, _ in found}


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_out_of_order_each_batch_comes_once_also_after_a_resume(method: Any) -> None:
    def made() -> DataLoader[Any]:
        return loader_of(Threaded(LENGTH), num_workers=3, in_order=False, worker_method=method, collate_fn=list)

    whole = sorted(taken(loader_of(Threaded(LENGTH), collate_fn=list)))
    with made() as loader:
        stream = iter(loader)
        found = [exact(next(stream)) for _ in range(3)]
        state = loader.state_dict()
    with made() as other:
        other.load_state_dict(state)
        found += map(exact, other)
    assert sorted(found) == whole


def test_a_loop_that_is_left_and_steps_that_are_passed_over() -> None:
    def run(**options: Any) -> list[str]:
        found = []
        with loader_of(**options) as loader:
            for batch in loader:
                found.append(exact(batch))
                if len(found) == 2:
                    break
            stream = iter(loader)
            stream.skip(3)
            found += map(exact, stream)
            loader.set_epoch(5)
            found += map(exact, loader)
            loader.set_epoch(loader.epoch)
            again = list(map(exact, loader))
        return [*found, *again]

    assert run() == run(num_workers=3)


@pytest.mark.parametrize("seconds", [0.0, 0.004])  # quick: batches are made whole; slow: in parts
def test_what_cannot_be_pickled_is_told_of_each_batch(seconds: float) -> None:
    class Local:
        """Another class, were it copied along."""

    for item in (threading.Lock(), Local(), Local, lambda: None):
        with DataLoader(Giving([item], seconds), batch_size=4, num_workers=2, fetch="samples") as loader:
            stream = iter(loader)
            for first in range(0, LENGTH, 4):
                with pytest.raises(NotSerializableError, match="use fetch='batches'") as caught:
                    next(stream)
                assert f"dataset[{first}] cannot be pickled" in str(caught.value)


SENTINEL = object()
LIST: list[int] = []
ARRAY = np.zeros(50_000)


class Giving(Numbers):
    """Gives the same objects again and again."""

    def __init__(self, items: list[Any], seconds: float = 0.0) -> None:
        super().__init__(LENGTH)
        self.items = items
        self.seconds = seconds

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return self.items[index % len(self.items)]


def same(samples: list[Any]) -> list[bool]:
    return [any(sample is item for item in (SENTINEL, LIST, None, Giving)) for sample in samples]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("seconds", [0.0, 0.003])
def test_samples_are_copies_in_every_batch_however_it_was_cut(workers: int, seconds: float) -> None:
    data = Giving([SENTINEL, LIST, None, Giving], seconds)
    with DataLoader(data, batch_size=8, num_workers=workers, fetch="samples", collate_fn=same) as loader:
        found = [is_it for batch in loader for is_it in batch]
    assert found == [index % 4 in (2, 3) for index in range(LENGTH)]


def changing(samples: list[Any]) -> list[Any]:
    """Changes each sample, and says what it had found."""
    found = []
    for numbers, array in samples:
        found.append((len(numbers), float(array[0])))
        numbers.append(1)
        array += 1
    return found


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("seconds", [0.0, 0.003])
def test_what_collating_changes_is_no_other_samples(workers: int, seconds: float) -> None:
    data = Giving([(LIST, ARRAY)], seconds)
    with DataLoader(data, batch_size=8, num_workers=workers, fetch="samples", collate_fn=changing) as loader:
        assert {pair for _ in range(2) for batch in loader for pair in batch} == {(0, 0.0)}


class AnyBatches:
    """Batches of indices as iterables of any kind."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[Any]:
        for first in range(0, 40, 8):
            yield self.make(range(first, first + 8))


@pytest.mark.parametrize("make", [iter, set, dict.fromkeys, lambda of: (i for i in of), lambda of: map(int, of)])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}])
def test_a_batch_of_indices_may_be_any_iterable(make: Any, options: dict[str, Any]) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(Numbers(40), batch_sampler=AnyBatches(make), fetch="samples", collate_fn=list, **options)

    whole = [list(range(first, first + 8)) for first in range(0, 40, 8)]
    with loader() as first:
        stream = iter(first)
        assert [next(stream), next(stream)] == whole[:2]
        state = first.state_dict()
    with loader() as other:
        other.load_state_dict(state)
        assert list(other) == whole[2:]


def test_figures_count_samples_and_batches() -> None:
    with loader_of(num_workers=2, measure=True) as loader:
        list(loader)
        rows = {row.name: row for row in loader.stats().nodes}
    assert rows["Slow[...]"].items == LENGTH
    assert rows["drawing"].items == -(-LENGTH // 6)


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_figures_of_workers_are_in_batches_and_without_a_limit_that_is_none(method: Any) -> None:
    with loader_of(num_workers=2, worker_method=method, collate_fn=list) as loader:
        stream = iter(loader)
        for _ in range(4):
            next(stream)
        stats = loader.stats()
        assert 4 <= sum(row.items for row in stats.processes if row.kind != "main") <= 4 + 2 * 2
        assert {queue.limit for queue in stats.queues} == {None}
        assert len(list(stream)) == -(-LENGTH // 6) - 4


class Together:
    """Workers whose messages have many parts, but one batch at most. The one that is dealt the first task is stuck."""

    num_workers, rebuild_s = 3, 0.0
    processes: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.tasks: list[list[Any]] = [[] for _ in range(self.num_workers)]
        self.begun: set[int] = set()
        self.stuck: int | None = None

    def deal(self, lane: int, entries: Any, *, over: bool = False) -> None:
        self.stuck = lane if self.stuck is None else self.stuck
        self.tasks[lane] += entries
        self.begun |= {task.key for task in entries}

    def pull_any(self, lanes: Any, timeout_s: float | None = None, waited_s: float = 0.0) -> tuple[int, Chunk]:
        lane = next((lane for lane in lanes if lane != self.stuck), None)
        if lane is None:
            raise TimeoutError
        items: list[Any] = []
        while self.tasks[lane]:
            task = self.tasks[lane].pop(0)
            if isinstance(task, Joining):
                return lane, Chunk(items=[*items, "a batch"])
            items.append(PartSamples([0] * (task.stop - task.first), 1_000_000 * (task.stop - task.first)))
        return lane, Chunk(items=items)


def test_parts_that_come_together_begin_no_more_batches_than_the_window_has() -> None:
    workers: Any = Together()
    shared = SharedWorkers(workers, 3, 2)
    for lane in range(3):
        shared.deal(lane, [(key, list(range(48))) for key in range(lane, 60, 3)])
    shared.begin()
    with pytest.raises(TimeoutError):
        shared.pull_any([0])
    assert len(workers.begun) == 3 * 2


class ByMany(Numbers):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


@pytest.mark.parametrize(
    ("data", "options", "text"),
    [
        (Numbers(9), {"batch_size": None}, "batch_size"),
        (Lines(9), {}, "map-style"),
        (ByMany(9), {}, "__getitems__"),
        (Subset(Numbers(9), [1, 2]), {}, "sampler"),
        (StatefulNumbers(9), {}, "state_dict"),
        (Numbers(9), {"worker_seeding": "torch"}, "worker_seeding"),
        (Numbers(9), {"worker_method": "ray", "num_workers": 1}, "worker_method"),
        (Numbers(9), {"autotune": True, "num_workers": 1}, "autotune"),
        (Numbers(9), {"fetch": "sample"}, "'samples'"),
    ],
)
def test_what_it_does_not_go_with_is_refused(data: Dataset[Any], options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        DataLoader(data, **{"fetch": "samples", **options})


def test_nothing_changes_without_it() -> None:
    options = {"batch_size": 3, "shuffle": True}
    assert epochs_of(Augmented(20), 2, seed=4, **options) == epochs_of(
        Augmented(20), 2, seed=4, fetch="batches", num_workers=2, **options
    )
