"""L3, exact states: whoever makes the items takes them, the run goes on as without, and what is not so is refused."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from reading_services import DistributedReadingService, MultiProcessingReadingService, SequentialReadingService
from torchpipe import DataLoader, DataLoader2, InProcessReadingService, IterDataPipe
from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper
from torchpipe.state import SnapshotPolicy

COUNT = 400
WORKERS = [0, 2]


class EveryThird:
    """Counts in an attribute, and says so with numpy's numbers: nobody knows where it was."""

    def __init__(self) -> None:
        self._asked = 0

    def __call__(self, _: int) -> Any:
        self._asked += 1
        return np.bool_(self._asked % 3 != 0)


def every_third_in_closure() -> Callable[[int], bool]:
    asked = [0]

    def wanted(_: int) -> bool:
        asked[0] += 1
        return asked[0] % 3 != 0

    return wanted


class Drawing:
    """Draws from the process's generators, and changes its argument."""

    def __call__(self, item: list[int]) -> bool:
        item.append(-1)
        return random.random() + np.random.random() < 1.5


class NoneNow:
    """Leaves out all once a file is there, in whichever process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, _: int) -> bool:
        return not self.path.exists()


class Moody:
    """Answers as it was when it was first asked: otherwise if a file was there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mended: bool | None = None

    def __call__(self, number: int) -> bool:
        if self._mended is None:
            self._mended = self.path.exists()
        return number % 10 != 0 and not (self._mended and number % 7 == 3)


def listed(number: int) -> list[int]:
    return [number]


def numbers() -> IterDataPipe[int]:
    return IterableWrapper(range(COUNT)).shuffle(buffer_size=30).sharding_filter()


def loader(graph: IterDataPipe[Any], workers: int, **options: Any) -> DataLoader2[Any]:
    policy = partial(SnapshotPolicy, every=25)
    if not workers:
        service: Any = InProcessReadingService(num_shards=2, policy=policy, **options)
    else:
        service = MultiProcessingReadingService(workers, num_shards=2, policy=policy, **options)
    made = DataLoader2(graph, reading_service=service)
    made.seed(3)
    return made


def undisturbed(make: Callable[[], IterDataPipe[Any]], workers: int) -> list[str]:
    with loader(make(), workers) as running:
        return list(map(repr, running))


FUNCTIONS: dict[str, Callable[[], IterDataPipe[Any]]] = {
    "draws": lambda: numbers().map(listed).filter(Drawing()),
    "draws, in batches": lambda: numbers().map(listed).filter(Drawing()).batch(3, wrapper_class=list).shuffle(),
}
COUNTING: dict[str, Callable[[], IterDataPipe[Any]]] = {
    "an object": lambda: numbers().filter(EveryThird()),
    "a closure": lambda: numbers().filter(every_third_in_closure()),
}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("form", FUNCTIONS)
def test_a_run_that_saves_goes_on_as_one_that_does_not(form: str, workers: int) -> None:
    make = FUNCTIONS[form]
    expected = undisturbed(make, workers)
    with loader(make(), workers) as running:
        outside = random.getstate()
        seen = list[str]()
        for item in running:
            seen.append(repr(item))
            if len(seen) in (1, 2, 30, 31, 77):
                state = running.state_dict(exact=True)
                for others in WORKERS:
                    with loader(make(), others) as other:
                        other.load_state_dict(state)
                        assert list(map(repr, other)) == expected[len(seen) :]
                        assert list(other)  # and the next epoch
        assert seen == expected
        assert random.getstate() == outside


@pytest.mark.parametrize("form", COUNTING)
def test_hidden_counts_are_not_moved_in_this_process(form: str) -> None:
    expected = undisturbed(COUNTING[form], 0)
    with loader(COUNTING[form](), 0) as running:
        seen = list[str]()
        for item in running:
            seen.append(repr(item))
            if len(seen) in (1, 30, 77):
                running.state_dict(exact=True)
        assert seen == expected


def test_hidden_counts_are_not_moved_in_workers() -> None:
    make = COUNTING["an object"]
    expected = undisturbed(make, 2)
    with loader(make(), 2) as running:
        seen = list[str]()
        for item in running:
            seen.append(repr(item))
            if len(seen) in (78, 79, 80, 81):  # behind a snapshot, which knows nothing of the count
                running.state_dict(exact=True)
        assert seen == expected


@pytest.mark.parametrize("workers", [2])
def test_changed_code_goes_on_from_an_exact_state_of_workers(workers: int, tmp_path: Path) -> None:
    mood = tmp_path / "mood"
    with loader(numbers().filter(Moody(mood)), workers) as running:
        stream = iter(running)
        items = [next(stream) for _ in range(41)]
        state = running.state_dict()
        exact = running.state_dict(exact=True)
        assert exact["payload"] != state["payload"]
        items += stream
    assert sorted(items) == [number for number in range(COUNT) if number % 10]
    mood.touch()
    with loader(numbers().filter(Moody(mood)), workers) as other:
        other.load_state_dict(exact)
        rest = list(other)
    assert set(rest) == {number for number in items[41:] if number % 7 != 3}


@pytest.mark.parametrize("workers", WORKERS)
def test_what_is_refused_is_not_lost(workers: int, tmp_path: Path) -> None:
    mood = tmp_path / "mood"
    with loader(numbers().filter(NoneNow(mood)), workers) as running:
        stream = iter(running)
        for _ in range(41):
            next(stream)
        state, rest = running.state_dict(), list(stream)
    with loader(numbers().filter(NoneNow(mood)), workers) as other:
        other.load_state_dict(state)
        mood.touch()
        for _ in range(2):
            refused = iter(other)  # which starts nothing yet
            with pytest.raises(StateError, match="ended after 0 of"):
                next(refused)
            assert (other.epoch, other.state_dict()["payload"]) == (0, state["payload"])
        mood.unlink()
        assert list(other) == rest
        assert other.epoch == 1


def test_an_error_behind_the_first_item_of_a_rest_ends_that_epoch() -> None:
    def broken(number: int) -> int:
        if number == fails:
            raise ValueError(number)
        return number

    fails = -1
    with loader(IterableWrapper(range(20)).sharding_filter().map(broken), 0) as running:
        stream = iter(running)
        items = [next(stream) for _ in range(6)]
        state = running.state_dict()
        running.load_state_dict(state)
        rest = iter(running)
        fails = items[0] + 6
        with pytest.raises(ValueError, match=str(fails)):
            for item in rest:
                items.append(item)
        assert running.epoch == (0 if len(items) == 6 else 1)


def at_work(make: Callable[[], Any], how: str) -> Any:
    made = make()
    stream = iter(made)
    for _ in range(4):
        next(stream)
    if how == "left":
        del stream
        return made
    made.load_state_dict(made.state_dict())
    return made


@pytest.mark.parametrize("how", ["left", "loaded"])
@pytest.mark.parametrize("workers", WORKERS)
def test_an_exact_state_is_of_a_loop_at_work(how: str, workers: int) -> None:
    """The same of both loaders; a state of that position is there."""
    for make in (lambda: loader(numbers().filter(EveryThird()), workers), lambda: batches(Rows(), workers)):
        found = at_work(make, how)
        try:
            with pytest.raises(StateError, match="a loop that is at work"):
                found.state_dict(exact=True)
            assert found.state_dict()["delivered"] == 4
        finally:
            found.shutdown()


def test_where_items_are_made_ahead_in_this_process_nothing_is_touched() -> None:
    ahead = threading.Event()

    def note(number: int) -> int:
        made.append(number)
        if len(made) == 31:
            ahead.set()
        return number

    def make() -> IterDataPipe[int]:
        return numbers().filter(EveryThird()).map(note)

    made = list[int]()
    expected = undisturbed(make, 0)
    made.clear()
    ahead.clear()
    with loader(make(), 0, prefetch_cnt=3) as running:
        seen = list[str]()
        for item in running:
            seen.append(repr(item))
            if len(seen) == 30:
                assert ahead.wait(60)
                with pytest.raises(StateError, match="made ahead"):
                    running.state_dict(exact=True)
        assert seen == expected


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_shards_of_a_rank_that_end_together_are_exact_at_every_position() -> None:
    """They have made the next round before its first item is handed out."""

    def made() -> DataLoader2[Any]:
        graph = IterableWrapper(range(24)).shuffle(buffer_size=5).sharding_filter().map(listed).filter(Drawing())
        inner = InProcessReadingService(policy=partial(SnapshotPolicy, every=5))
        made = DataLoader2(
            graph, reading_service=SequentialReadingService(DistributedReadingService(total_shards=2), inner)
        )
        made.seed(3)
        return made

    with made() as undisturbed:
        expected = list(map(repr, undisturbed))
    with made() as running, made() as other:
        seen = list[str]()
        for item in running:
            seen.append(repr(item))
            other.load_state_dict(running.state_dict(exact=True))
            assert list(map(repr, other)) == expected[len(seen) :]
        assert seen == expected


class Rows(IterableDataset[int]):
    """Has no state."""

    def __iter__(self) -> Iterator[int]:
        return (number for number in range(COUNT) if number % 10)


class Position(IterableDataset[int]):
    """Keeps where it is in itself, among all items, of which each worker hands out its own; counts them in numpy."""

    def __init__(self) -> None:
        self.at, self.given = 0, np.int64(0)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        for number in range(self.at, 150):
            self.at = number + 1
            if number % workers == worker:
                self.given += 1
                yield number, int(self.given), Globals.offset
        self.at, self.given = 0, np.int64(0)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "given": int(self.given)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.given = state["at"], np.int64(state["given"])


class Globals:
    """As globals of a module."""

    offset = 0


def set_globals(worker: int) -> None:
    Globals.offset = 1000 * (1 + worker)


class ReadOnce(IterableDataset[int]):
    """Its iterator can be read once, and counts."""

    def __init__(self) -> None:
        self.count, self._rows = 0, (number for number in range(COUNT))

    def __iter__(self) -> Iterator[int]:
        for number in self._rows:
            self.count += 1
            yield number


class Noting:
    """A ``worker_init_fn`` that notes its process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, _: int) -> None:
        (self.folder / str(os.getpid())).touch()


def batches(dataset: Any, workers: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=list, **options)


def test_a_dataset_that_can_be_read_once_is_neither_exact_nor_read_again() -> None:
    dataset = ReadOnce()
    running = batches(dataset, 0)
    seen = list[int]()
    for batch in running:
        seen += batch
        if len(seen) in (4, 40):
            with pytest.raises(StateError, match=r"the iterable ReadOnce keeps no state.*state_dict\(\)|made again"):
                running.state_dict(exact=True)
            assert dataset.count == len(seen)
    assert seen == list(range(COUNT))


HOSTS: dict[str, dict[str, Any]] = {
    "a process each": {"num_workers": 2},
    "three processes": {"num_workers": 3},
    "processes that stay": {"num_workers": 2, "persistent_workers": True},
    "as many as are of use": {"num_workers": 2, "autotune": True},
    "module globals": {"num_workers": 2, "worker_init_fn": set_globals},
    "this process": {"num_workers": 0},
}


def of_position(**options: Any) -> DataLoader[Any]:
    return DataLoader(Position(), batch_size=3, collate_fn=list, **options)


@pytest.mark.parametrize("host", HOSTS)
def test_a_dataset_that_keeps_its_position_is_one_for_each_worker(host: str) -> None:
    options = HOSTS[host]
    with of_position(**options) as undisturbed:
        expected = list(undisturbed)
    assert len({item[0] for batch in expected for item in batch}) == 150
    with of_position(**options) as running:
        stream = iter(running)
        head = [next(stream) for _ in range(11)]
        states = [running.state_dict(exact=True)]
        head += [next(stream) for _ in range(6)]
        states.append(running.state_dict(exact=True))
        assert [*head, *stream] == expected
    assert Globals.offset == 0
    for delivered, state in zip((11, 17), states):
        with of_position(**options) as resumed:
            resumed.load_state_dict(state)
            stream = iter(resumed)
            assert next(stream) == expected[delivered]
            again = resumed.state_dict(exact=True)
            assert list(stream) == expected[delivered + 1 :]
        if host in ("module globals", "this process"):  # a process has one of these
            continue
        for workers in (0, 1):  # which hosts all of them
            with of_position(num_workers=workers) as other:
                other.load_state_dict(again)
                stream = iter(other)
                assert next(stream) == expected[delivered + 1]
                once_more = other.state_dict(exact=True)
                assert list(stream) == expected[delivered + 2 :]
            with of_position(**options) as back:
                back.load_state_dict(once_more)
                assert list(back) == expected[delivered + 2 :]


@pytest.mark.parametrize("workers", WORKERS)
def test_what_would_be_made_again_is_no_exact_state(workers: int) -> None:
    """Neither of a dataset without a state nor of a node; the run goes on."""
    for make in (lambda: batches(Rows(), workers), lambda: loader(Unknown(numbers()), workers)):
        with make() as undisturbed:
            expected = list(undisturbed)
        with make() as running:
            seen = list[Any]()
            for item in running:
                seen.append(item)
                if len(seen) in (1, 2, 30, 51):
                    with pytest.raises(StateError, match=r"keeps no state, and .* again\. Give it state_dict\(\)"):
                        running.state_dict(exact=True)
            assert seen == expected


class Unknown(IterDataPipe[int]):
    """Keeps no state."""

    def __init__(self, source: IterDataPipe[int]) -> None:
        self.source = source

    def __iter__(self) -> Iterator[int]:
        yield from self.source


@pytest.mark.parametrize("workers", WORKERS)
def test_a_DataLoader_takes_an_exact_state_where_its_batches_are_made(workers: int, tmp_path: Path) -> None:
    running = batches(Position(), workers, worker_init_fn=Noting(tmp_path))
    stream = iter(running)
    for _ in range(11):
        next(stream)
    state = running.state_dict(exact=True)
    rest = list(stream)
    again = batches(Position(), workers)
    again.load_state_dict(state)
    assert list(again) == rest
    assert not (tmp_path / str(os.getpid())).exists()
    assert len(list(tmp_path.iterdir())) >= workers


@pytest.mark.parametrize("workers", WORKERS)
def test_another_thread_may_take_exact_states(workers: int) -> None:
    make = FUNCTIONS["draws"]
    expected = undisturbed(make, workers)
    errors, states, over = list[BaseException](), list[Any](), threading.Event()

    def save(running: Any) -> None:
        try:
            while not over.is_set():
                states.append(running.state_dict(exact=True))
        except BaseException as error:
            errors.append(error)

    with loader(make(), workers) as running:
        seen, stream = list[str](), iter(running)
        seen.append(repr(next(stream)))
        thread = threading.Thread(target=save, args=(running,))
        thread.start()
        for _ in range(60):
            seen.append(repr(next(stream)))
        over.set()
        thread.join()
        seen += map(repr, stream)
    assert not errors
    assert seen == expected
    with loader(make(), 2 - workers) as other:
        state = states[len(states) // 2]
        other.load_state_dict(state)
        assert list(map(repr, other)) == expected[state["delivered"] :]


class Stopping:
    """Ends nothing, though it raises what would."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, number: int) -> bool:
        if number == 4 and self.path.exists():
            raise StopIteration(number)
        return number % 10 != 0


@pytest.mark.parametrize("workers", WORKERS)
def test_a_function_that_stops_while_items_are_made_again_is_named(workers: int, tmp_path: Path) -> None:
    stop = tmp_path / "stop"

    def make() -> DataLoader2[Any]:
        return loader(IterableWrapper(range(COUNT)).sharding_filter().filter(Stopping(stop)), workers)

    with make() as running:
        stream = iter(running)
        for _ in range(20):
            next(stream)
        state = running.state_dict()
        stop.touch()
        if workers:
            with pytest.raises(
                StateError, match=r"shard 0 after item 10: RuntimeError: generator raised StopIteration"
            ):
                running.state_dict(exact=True)
        rest = list(stream)
    with make() as other:
        other.load_state_dict(state)
        with pytest.raises(RuntimeError) as told:
            next(iter(other))
        notes = "\n".join(told.value.__notes__)
        assert "__call__() raised StopIteration" in notes
        assert "raised in Filter(Stopping) for one of the items before item 10 of shard 0" in notes
        assert other.epoch == 0
        stop.unlink()
        assert list(other) == rest
