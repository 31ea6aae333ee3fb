"""L2: what the user sets in an iterable dataset between two epochs counts in this run, and in one that goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import Dataset, IterableDataset

from torchpipe import DataLoader

EVERYWHERE: dict[str, dict[str, Any]] = {
    "in process": {},
    "processes": {"num_workers": 2, "multiprocessing_context": "fork"},
    "processes that persist": {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
    "threads": {"num_workers": 2, "worker_method": "thread"},
}
pytestmark = pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning", "ignore:the state is of a run")


class Level(IterableDataset[int]):
    """The loop sets its level, and what makes its samples; it counts its passes itself."""

    make: Callable[[int], int] | None = None

    def __init__(self) -> None:
        self.level = self.passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        for number in range(6):
            yield 1000 * self.level + 100 * self.passes + (number if self.make is None else self.make(number))


class Plain(Level):
    """Keeps nothing."""

    def __iter__(self) -> Iterator[int]:
        return (1000 * self.level + number for number in range(6))


class Told(Level):
    """Has a state."""

    def state_dict(self) -> dict[str, Any]:
        return {"passes": self.passes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes = state["passes"]


class Read(Dataset[int]):
    """Read by index."""

    level = 0

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return 1000 * self.level + index


def plain(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


def rest_of(loader: Any, dataset: Level, *, told: bool = False) -> list[Any]:
    """Each epoch that is left of three, with its level; ``told``: the loader is told first which epoch that is."""
    given = []
    for epoch in range(loader.epoch, 3):
        dataset.level = epoch
        if told:
            loader.set_epoch(epoch)
        given.append(plain(loader))
    return given


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("cut", [None, 1])
@pytest.mark.parametrize("kind", [Plain, Level, Told])
@pytest.mark.parametrize("there", EVERYWHERE)
def test_L2_a_state_of_the_end_of_an_epoch_in_process_goes_on_anywhere(
    there: str, kind: type[Level], cut: int | None, told: bool
) -> None:
    dataset = kind()
    loader: Any = DataLoader(dataset, 2)
    for taken, _ in enumerate(loader, 1):
        if taken == cut:
            break
    if cut is not None:
        loader.set_epoch(1)
    state, expected = loader.state_dict(), rest_of(loader, dataset)
    for _ in range(2):
        with DataLoader(dataset := kind(), 2, **EVERYWHERE[there]) as other:
            other.load_state_dict(state)
            dataset.level = 1
            state = other.state_dict()  # of the same moment, with the level in it
            assert rest_of(other, dataset, told=told) == expected


@pytest.mark.parametrize("there", ["in process", "processes", "threads"])
def test_L2_what_is_set_behind_iter_is_in_the_state_where_the_pass_has_it(there: str) -> None:
    with DataLoader(dataset := Level(), 2, **EVERYWHERE[there]) as loader:
        plain(loader)
        dataset.level = 1
        stream = iter(loader)
        dataset.level = 2  # in process, the pass has not begun
        states = [loader.state_dict()]
        given = [next(stream).tolist()]
        states.append(loader.state_dict())
        given += plain(stream)
    assert given[0][0] // 1000 == (2 if there == "in process" else 1)
    for number, state in enumerate(states):
        with DataLoader(dataset := Level(), 2, **EVERYWHERE[there]) as other:
            other.load_state_dict(state)
            if there != "in process":  # workers' states hold nothing of what the user sets, who sets it again
                dataset.level = 1
            assert plain(other) == given[number:]


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("there", EVERYWHERE)
def test_L2_loading_its_own_state_leaves_what_cannot_be_taken_down(there: str, looks: bool) -> None:
    with DataLoader(dataset := Level(), 2, **EVERYWHERE[there]) as loader:
        plain(loader)
        dataset.level, dataset.make = 1, lambda number: 7 * number
        made = dataset.make
        if looks:
            loader.peek()
        else:
            loader.load_state_dict(loader.state_dict())
        assert dataset.make is made
        assert dataset.level == 1
        if there == "in process":
            assert plain(loader) == [[1200, 1207], [1214, 1221], [1228, 1235]]


PERSISTING = {
    "fork": {"multiprocessing_context": "fork"},
    "threads": {"worker_method": "thread"},
}


@pytest.mark.parametrize("cut", [None, 1])
@pytest.mark.parametrize(
    ("how", "kind"), [("fork", Read), *((how, kind) for how in PERSISTING for kind in (Plain, Level))]
)
def test_L2_workers_that_persist_have_what_was_set_when_they_began_behind_a_load_too(
    how: str, kind: Any, cut: int | None
) -> None:
    def made() -> tuple[Any, Any]:
        dataset = kind()
        return dataset, DataLoader(dataset, 2, num_workers=1, persistent_workers=True, **PERSISTING[how])

    dataset, loader = made()
    dataset.level = 5
    with loader:
        for taken, _ in enumerate(loader, 1):
            if taken == cut:
                break
        loader.set_epoch(1)
        states = [loader.state_dict()]
        with pytest.warns(UserWarning, match=r"does not reach them|\(level\)"):
            expected = rest_of(loader, dataset)
        assert expected[0][0][0] // 1000 == 5
        assert dataset.level == 2
    dataset, loader = made()
    dataset.level = 5
    with loader:
        next(stream := iter(loader))
        states.append(loader.state_dict())  # of the midst of one
        whole = [plain(stream), *rest_of(loader, dataset)]
    for state, wanted in zip(states, (expected, whole), strict=True):
        dataset, loader = made()
        with loader:
            loader.load_state_dict(state)
            found = [] if wanted is expected else [plain(loader)]
            assert found + rest_of(loader, dataset) == wanted
            assert dataset.level == 2


@pytest.mark.parametrize("persists", [False, True])
@pytest.mark.parametrize("kind", [Plain, Level, Read])
def test_L4_a_successor_has_what_was_set_when_its_epochs_workers_began(kind: Any, persists: bool) -> None:
    options: Any = {"num_workers": 1, "multiprocessing_context": "fork", "persistent_workers": persists}
    found = []
    for dies in (False, True):
        dataset = kind()
        with DataLoader(dataset, 1, prefetch_factor=1, **options) as loader:
            stream = iter(loader)
            given = [next(stream).tolist()]
            dataset.level = 7
            if dies:
                os.kill(loader.worker_pids()[0], signal.SIGKILL)
            found.append(given + plain(stream))
    assert found[0] == found[1]
