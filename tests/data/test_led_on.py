"""L2: what samplers and datasets keep goes on where the rest of an epoch is left out, and behind its last batch."""

from __future__ import annotations

import os
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from torchpipe import DataLoader

FORK: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork"}


class Drawing(Sampler[int]):
    """Draws from a generator of its own; counts its passes."""

    def __init__(self) -> None:
        self.random = torch.Generator().manual_seed(5)
        self.passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return iter([(index + self.passes) % 8 for index in torch.randperm(8, generator=self.random).tolist()])

    def __len__(self) -> int:
        return 8


class Told(Sampler[int]):
    """Says in a state where it stands, and goes on there in the next pass."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        for _ in range(8):
            self.at += 1
            yield self.at % 8

    def __len__(self) -> int:
        return 8

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Made(Dataset[int]):
    """Its samples count on from epoch to epoch."""

    made = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.made += 1
        return self.made

    def state_dict(self) -> dict[str, Any]:
        return {"made": self.made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.made = state["made"]


ORDERS: dict[str, Callable[[], Any]] = {
    "a sampler that draws": lambda: DataLoader(range(8), 2, sampler=Drawing()),  # type: ignore[arg-type]
    "a sampler with a state": lambda: DataLoader(range(8), 2, sampler=Told()),  # type: ignore[arg-type]
    "a dataset with a state": lambda: DataLoader(Made(), 2),
    "shuffled": lambda: DataLoader(Made(), 2, shuffle=True, generator=torch.Generator().manual_seed(1)),
    "workers that persist": lambda: DataLoader(
        range(8),  # type: ignore[arg-type]
        2,
        shuffle=True,
        generator=torch.Generator().manual_seed(1),
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="fork",
    ),
}


def plain(loader: Any) -> list[Any]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("name", ORDERS)
def test_L2_another_epoch_than_the_loaded_one_goes_on_from_where_it_was_left(name: str, looks: bool) -> None:
    loader = ORDERS[name]()
    plain(loader)
    for _ in zip(range(2), loader):
        pass
    state = loader.state_dict()
    loader.set_epoch(2)
    expected = plain(loader)
    other = ORDERS[name]()
    other.load_state_dict(state)
    if looks:
        next(iter(other))
    other.set_epoch(2)
    assert plain(other) == expected


class Counting(IterableDataset[int]):
    """Each pass in a process is another one."""

    passes = 0

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter([100 * self.passes + number for number in range(first, self.length, step)])


class GoingOn(Counting):
    """Says in a state how many records it has given, in all passes, and how many this one has left."""

    at, left = 0, -1

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        if self.left < 0:
            self.left = self.length if info is None else self.length // info.num_workers
        while self.left:
            self.left -= 1
            self.at += 1
            yield self.at
        self.left = -1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.left = state["at"], state["left"]


@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
@pytest.mark.parametrize("workers", [False, True])
@pytest.mark.parametrize("kind", [Counting, GoingOn])
@pytest.mark.parametrize("length", [3, 4, 5])  # in batches of 2 and of 3: the last one may be full or not, or the first
def test_L2_the_next_epoch_after_a_state_behind_any_batch(kind: type[Counting], workers: bool, length: int) -> None:
    def make() -> Any:
        return DataLoader(kind(length), 3, **FORK if workers else {})

    with make() as loader:
        batches = len(plain(loader))
    for count in range(1, batches + 1):
        with make() as loader:
            stream = iter(loader)
            for _ in range(count):
                next(stream)
            states = [loader.state_dict()]
            if kind is GoingOn:
                states.append(loader.state_dict(exact=True))
            rest, expected = plain(stream), plain(loader)
        for state in states:
            with make() as loader:
                loader.load_state_dict(state)
                assert plain(loader) == rest
                assert plain(loader) == expected, count


@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
@pytest.mark.parametrize("kind", [Counting, GoingOn])
def test_L4_a_worker_that_dies_behind_its_last_batch_gives_no_part_of_an_epoch_again(kind: type[Counting]) -> None:
    expected = None
    for dies in (False, True):
        with DataLoader(kind(4), 3, **FORK) as loader:
            stream = iter(loader)
            next(stream)
            if dies:
                os.kill(loader.worker_pids()[0], signal.SIGKILL)
            found = plain(stream) + plain(loader)
        assert expected in (None, found)
        expected = found


class Mixing(Counting):
    """Draws when a pass begins, and for each record."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.random = random.Random(3)

    def __iter__(self) -> Iterator[int]:
        for number in super().__iter__():
            yield number + 10_000 * self.random.randrange(100)


BEFORE = ("", "", "drop", "skip", "past the end")


class Cut:
    """Runs epochs that are cut short, each after so many batches, by the recipe of the pages."""

    def __init__(self, loader: Any, program: list[tuple[int, bool, str]]) -> None:
        self.loader, self.program = loader, program

    def run(self, state: Any = None, first: int = 0, dies: int = -1) -> tuple[list[Any], list[Any]]:
        """(what each epoch gave, the state behind it). From ``first`` on, with ``state``, if any."""
        loader, given, states = self.loader, [], []
        if state is not None:
            loader.load_state_dict(state)
        for number, (batches, names, before) in enumerate(self.program):
            if number < first:
                continue
            if before == "drop":
                iter(loader)
            elif before:
                loader.skip(1 if before == "skip" else 9)
            found, stream = [], iter(loader)
            for batch in stream:
                found.append(batch.tolist())
                if number == dies and len(found) == 1 and loader.worker_pids():
                    os.kill(loader.worker_pids()[0], signal.SIGKILL)
                if len(found) == batches:
                    break
            middle = loader.state_dict()
            stream = None  # type: ignore[assignment]
            loader.set_epoch(number + 1)
            given.append(found)
            states.append(loader.state_dict() if names else middle)
        return given, states


def cut_short(kind: Any, seed: int, here: dict[str, Any], there: dict[str, Any]) -> None:
    draw = random.Random(seed)
    length, size = draw.randint(3, 9), draw.randint(1, 3)
    program = [(draw.randint(1, 5), draw.random() < 0.5, draw.choice(BEFORE)) for _ in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with DataLoader(kind(length), size, **here) as loader:
            given, states = Cut(loader, program).run()
        for number, state in enumerate(states[:-1]):
            names = program[number][1]
            with DataLoader(kind(length), size, **there) as loader:
                if not names:
                    loader.load_state_dict(state)
                    loader.set_epoch(number + 1)  # as a trainer does, which leaves out the rest
                    state = loader.state_dict()
                rest, _ = Cut(loader, program).run(state, number + 1, dies=number + 1)
            assert rest == given[number + 1 :], (number, program, length, size)


@pytest.mark.parametrize("kind", [Counting, GoingOn, Mixing])
@pytest.mark.parametrize("seed", range(3))
def test_L2_epochs_that_are_cut_short_in_this_process(kind: Any, seed: int) -> None:
    cut_short(kind, seed, {}, {})


@pytest.mark.parametrize("kind", [Counting, GoingOn, Mixing])
@pytest.mark.parametrize("there", [FORK, {}])
def test_L2_L4_epochs_that_are_cut_short_in_workers(kind: Any, there: dict[str, Any]) -> None:
    cut_short(kind, 4, FORK, there)


class Level(IterableDataset[int]):
    """The loop sets its level; it counts its passes itself, and fails where it is told to."""

    def __init__(self) -> None:
        self.level, self.passes, self.fails = 0, 0, False

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        for number in range(6):
            if self.fails and number == 3:
                raise ValueError("a bad record")
            yield 1000 * self.level + 100 * self.passes + number


@pytest.mark.parametrize("cut", [None, 1, 2])
def test_L1_the_users_changes_between_epochs_count_as_with_torch(cut: int | None) -> None:
    got = []
    for kind in (DataLoader, torch.utils.data.DataLoader):
        dataset = Level()
        loader: Any = kind(dataset, batch_size=2)
        for epoch in range(4):
            dataset.level = epoch
            for taken, batch in enumerate(loader, 1):
                got.append((kind is DataLoader, batch.tolist()))
                if taken == cut:
                    break
            if kind is DataLoader:
                loader.set_epoch(epoch + 1)  # as loops do that cut epochs short
    ours, torchs = ([batch for is_ours, batch in got if is_ours is one] for one in (True, False))
    assert ours == torchs


@pytest.mark.parametrize("here", [False, True], ids=["another loader", "the same one"])
def test_L2_the_users_changes_count_in_a_resumed_run_too(here: bool) -> None:
    def run(loader: Any, dataset: Level) -> Iterator[tuple[list[int], Any]]:
        for epoch in range(loader.epoch, 3):
            dataset.level = epoch
            for batch in loader:
                yield batch.tolist(), loader.state_dict()
            yield [], loader.state_dict()

    dataset = Level()
    loader = DataLoader(dataset, 2)
    told = list(run(loader, dataset))
    for number, (_, state) in enumerate(told):
        if not here:
            dataset = Level()
            loader = DataLoader(dataset, 2)
        loader.load_state_dict(state)
        rest = [batch for batch, _ in run(loader, dataset) if batch]
        assert rest == [batch for batch, _ in told[number + 1 :] if batch], number


def test_L1_an_error_that_the_user_mends_does_not_come_again() -> None:
    dataset = Level()
    dataset.fails = True
    loader: Any = DataLoader(dataset, batch_size=2)
    with pytest.raises(ValueError, match="a bad record"):
        list(loader)
    dataset.fails = False
    assert [batch.tolist() for batch in loader] == [[200, 201], [202, 203], [204, 205]]


def test_L2_a_state_of_the_end_behind_one_of_the_midst_in_a_used_loader() -> None:
    def pass_of(loader: Any) -> list[Any]:
        return [batch.tolist() for batch in loader]

    run: Any = DataLoader(Level(), batch_size=2)
    states = []
    for _ in run:
        states.append(run.state_dict())
    states.append(run.state_dict())
    second = pass_of(run)
    for state in states[:-1]:
        used: Any = DataLoader(Level(), batch_size=2)
        used.load_state_dict(state)
        pass_of(used)
        used.load_state_dict(states[-1])
        assert pass_of(used) == second


class Tidying(Level):
    """Its generator changes it as it is closed."""

    def __iter__(self) -> Iterator[int]:
        try:
            yield from super().__iter__()
        finally:
            self.passes += 10


@pytest.mark.parametrize("cut", [1, 2])
def test_L2_what_a_generator_changes_as_it_is_closed(cut: int) -> None:
    run: Any = DataLoader(Tidying(), batch_size=2)
    for taken, _ in enumerate(run, 1):
        if taken == cut:
            break
    run.set_epoch(1)
    state = run.state_dict()
    resumed: Any = DataLoader(Tidying(), batch_size=2)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in run]
