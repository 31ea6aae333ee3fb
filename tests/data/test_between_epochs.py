"""L2: what the user sets in an iterable dataset between two epochs counts in this run, and in one that goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset

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


class Deep(Level):
    """Has what makes its samples in an object that a list holds, and in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.holders = [Level()]
        self.named: dict[str, Any] = {}

    def __iter__(self) -> Iterator[int]:
        self.holders[0].passes += 1
        self.holders.append(Level())
        make = self.holders[0].make or self.named.get("make") or (lambda number: number)
        return map(make, super().__iter__())


@pytest.mark.parametrize("loads", [False, True])
@pytest.mark.parametrize("place", ["holder", "dict", "list"])
def test_L1_a_peek_leaves_what_no_state_holds_at_any_depth(place: str, loads: bool) -> None:
    loader: Any = DataLoader(dataset := Deep(), 2)
    plain(loader)
    if loads:
        iter(loader)
        loader.load_state_dict(loader.state_dict())
    made: Any = lambda number: 7 * number  # noqa: E731
    if place == "holder":
        dataset.holders[0].make = made
    elif place == "dict":
        dataset.named["make"] = made
    else:
        dataset.holders.append(made)
    before = [*dataset.holders], {**dataset.named}, vars(dataset.holders[0]).copy()
    peeked = loader.peek().tolist()
    assert (dataset.holders, dataset.named, vars(dataset.holders[0])) == before
    assert plain(loader)[0] == peeked == ([200, 201] if place == "list" else [1400, 1407])
