"""Workers whose parts are made in one process, or anew after a death: each has a dataset of its own, as it was.

A state of four workers goes on in fewer processes, or in this one; autotune starts fewer than there are workers; a
process dies and another one takes its place.
"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from tests.data.datasets import StatefulNumbers
from torchpipe import DataLoader
from torchpipe.stats import Budget


def _part() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class PositionInItself(IterableDataset[int]):
    """Keeps where it stands on itself, and tells it."""

    position: int | None = None

    def __iter__(self) -> Iterator[int]:
        part, parts = _part()
        if self.position is None:
            self.position = part
        while self.position < 30:
            self.position += parts
            yield self.position - parts
        self.position = None

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class SetsItself(IterableDataset[int]):
    """Divides itself in the usual way, by attributes, and keeps no state."""

    def __iter__(self) -> Iterator[int]:
        part, parts = _part()
        self.start, self.step = 4 + part, parts
        return self._items()

    def _items(self) -> Iterator[int]:
        while self.start < 34:
            yield self.start
            self.start += self.step


class NoGenerator(IterableDataset[int]):
    """Its iterator has a state, and asks for its part when it is made."""

    def __iter__(self) -> Iterator[int]:
        return Part(*_part())


class Part(Iterator[int]):
    def __init__(self, part: int, parts: int) -> None:
        self.next, self.parts = part, parts

    def __next__(self) -> int:
        if self.next >= 30:
            raise StopIteration
        self.next += self.parts
        return self.next - self.parts

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


class ToldByInit(IterableDataset[int]):
    start, step = 0, 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, 30, self.step))


def divide(worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.start, info.dataset.step = worker, info.num_workers


class Counted(StatefulNumbers):
    def __getitem__(self, index: int) -> Any:
        return *super().__getitem__(index), _part()[0]


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "its position": lambda: {"dataset": PositionInItself()},
    "its part": lambda: {"dataset": SetsItself()},
    "no generator": lambda: {"dataset": NoGenerator()},
    "worker_init_fn": lambda: {"dataset": ToldByInit(), "worker_init_fn": divide},
}
ELSEWHERE: list[dict[str, Any]] = [
    {"num_workers": 4},
    {"num_workers": 2},
    {"num_workers": 0},
    {"num_workers": 1, "multiprocessing_context": "forkserver"},
    {"num_workers": 4, "autotune": Budget(cores=1)},
    {"num_workers": 2, "persistent_workers": True},
]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def values(batch: Any) -> Any:
    return [values(part) for part in batch] if isinstance(batch, list | tuple) else batch.tolist()


def epochs(loader: Any, count: int, stop: int | None = None) -> list[Any]:
    found: list[Any] = []
    while loader.epoch < count and len(found) != stop:
        for batch in loader:
            found.append(values(batch))
            if len(found) == stop:
                break
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_L3_a_state_of_four_workers_goes_on_anywhere(kind: str) -> None:
    with DataLoader(batch_size=2, num_workers=4, **KINDS[kind]()) as loader:
        expected = epochs(loader, 2)
    for number, way in enumerate(ELSEWHERE):
        stop = (1, 7, 16)[number % 3]  # the last one: between two epochs
        with DataLoader(batch_size=2, num_workers=4, **KINDS[kind]()) as loader:
            found = epochs(loader, 2, stop)
            state = loader.state_dict()
        with DataLoader(batch_size=2, **way, **KINDS[kind]()) as loader:
            loader.load_state_dict(state)
            found += epochs(loader, 2)
        assert found == expected, (stop, way)


@pytest.mark.parametrize("kind", ["its part", "worker_init_fn"])
def test_L1_threads_have_a_dataset_each(kind: str) -> None:
    with DataLoader(batch_size=2, num_workers=3, **KINDS[kind]()) as loader:
        expected = epochs(loader, 2)
    with DataLoader(batch_size=2, num_workers=3, worker_method="thread", **KINDS[kind]()) as loader:
        assert epochs(loader, 2) == expected


@pytest.mark.parametrize("cores", [1, 2])
def test_L1_autotune_gives_each_worker_a_dataset(cores: int) -> None:
    with DataLoader(Counted(64), 2, num_workers=4) as loader:
        expected = epochs(loader, 1)
    for stop in (7, None):
        with DataLoader(Counted(64), 2, num_workers=4, autotune=Budget(cores=cores)) as loader:
            found = epochs(loader, 1, stop)
            state = loader.state_dict()
        if stop is not None:
            with DataLoader(Counted(64), 2, num_workers=4, autotune=Budget(cores=cores)) as loader:
                loader.load_state_dict(state)
                found += epochs(loader, 1)
        assert found == expected


class Marked(Dataset[int]):
    part = -1

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index + 100 * self.part


def mark(worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.part = worker


def test_L1_what_worker_init_fn_puts_into_the_dataset_is_that_workers_whoever_hosts_it() -> None:
    dataset = Marked()
    with DataLoader(dataset, 2, num_workers=3, worker_init_fn=mark) as loader:
        expected = epochs(loader, 1)
    with DataLoader(dataset, 2, num_workers=3, worker_init_fn=mark, autotune=Budget(cores=1)) as loader:
        assert epochs(loader, 1) == expected
    assert dataset.part == -1


class Locked(SetsItself):
    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_L7_a_dataset_that_cannot_be_copied_is_refused() -> None:
    with DataLoader(Locked(), 2, num_workers=4, multiprocessing_context="fork") as loader:
        epochs(loader, 1, 2)
        state = loader.state_dict()
    loader = DataLoader(Locked(), 2)
    loader.load_state_dict(state)
    with pytest.raises(TypeError, match="each part needs a copy of the dataset, which cannot be copied"):
        list(loader)


# -- workers that persist -------------------------------------------------------------------------------------------


class TellsEpoch(Dataset[Any]):
    epoch = 0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return 100 * self.epoch + index

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def kill_one(loader: Any) -> None:
    os.kill(loader.worker_pids()[0], signal.SIGKILL)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_L4_a_successor_has_the_dataset_that_the_others_have(method: str, wrapped: bool) -> None:
    def run(kills: bool) -> list[Any]:
        inner = TellsEpoch()
        dataset: Any = Outer(inner) if wrapped else inner
        found: list[Any] = []
        options: Any = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": method}
        with DataLoader(dataset, 2, **options) as loader:
            for epoch in range(3):
                inner.set_epoch(epoch)
                for number, batch in enumerate(loader):
                    found.append(values(batch))
                    if kills and epoch and number == 1:
                        kill_one(loader)
        return found

    assert run(kills=True) == run(kills=False)


class Outer(Dataset[Any]):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


@pytest.mark.parametrize("end", ["kill", "break", "resume", "kill and resume"])
def test_L4_a_datasets_state_outlives_the_epoch_and_its_worker(end: str) -> None:
    options: Any = {"num_workers": 2, "persistent_workers": True}

    def loader_of() -> Any:
        return DataLoader(StatefulNumbers(12), 2, **options)

    def run(end: str) -> list[Any]:
        found: list[Any] = []
        with loader_of() as loader:
            for number, batch in enumerate(loader, 1):
                found.append(values(batch))
                if end == "break" and number == 3:
                    break
                if "kill" in end and number == 6:
                    kill_one(loader)
            state = loader.state_dict()
            if "resume" not in end:
                return found + [values(batch) for batch in loader]
        with loader_of() as loader:
            loader.load_state_dict(state)
            return found + [values(batch) for batch in loader]

    if end == "break":  # what was made ahead, and not handed out, counts for nothing
        assert [batch[1] for batch in run(end)] == [
            [1, 2],
            [1, 2],
            [3, 4],
            [5, 6],
            [3, 4],
            [7, 8],
            [5, 6],
            [9, 10],
            [7, 8],
        ]
    else:
        assert run(end) == run("")
