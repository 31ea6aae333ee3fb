"""L2 through ``DataLoader`` after Ctrl-C at any instruction: the state is true, random states are the user's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, Sampler

from tests.data.datasets import Augmented, LazySampler, Lines, Numbers, StatefulNumbers, StatefulSampler, seeded
from tests.exact import exact
from tests.laws.interrupts import Interrupt, Interrupter, before_first
from tests.laws.test_L2_interrupts import outside
from torchpipe import DataLoader

LENGTH, WARM, MORE = 14, 2, 3  # samples; batches before the interrupt may come, and meanwhile
PLACES = ("torchpipe.data", "torchpipe.randomness")

IN_PROCESS: dict[str, Callable[[], DataLoader[Any]]] = {
    "shuffled": lambda: DataLoader(Augmented(LENGTH), 2, shuffle=True),
    "lazy sampler": lambda: DataLoader(Augmented(LENGTH), 2, sampler=LazySampler(LENGTH, 20, "torch")),
    "stateful sampler": lambda: DataLoader(Augmented(LENGTH), 2, sampler=StatefulSampler(LENGTH)),
    "iterable": lambda: DataLoader(Lines(LENGTH), 2),
    "device": lambda: DataLoader(Augmented(LENGTH), 2, device="cpu"),
    "an epoch was skipped": lambda: behind_a_skipped_epoch(),
}
FORKED: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
WORKERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "stateful dataset": lambda: DataLoader(StatefulNumbers(LENGTH), 2, **FORKED),
    "out of order": lambda: DataLoader(Augmented(LENGTH), 2, in_order=False, **FORKED),
    "threads": lambda: DataLoader(Numbers(LENGTH), 2, shuffle=True, num_workers=2, worker_method="thread"),
}
BEGINNING: dict[str, Callable[[], DataLoader[Any]]] = {
    "shuffled": IN_PROCESS["shuffled"],
    "counting sampler": lambda: DataLoader(Augmented(LENGTH), 2, sampler=CountingSampler(LENGTH)),
    "stateful sampler": IN_PROCESS["stateful sampler"],
    "going on": lambda: DataLoader(Passes(LENGTH), 2),
    "persistent workers": lambda: DataLoader(Augmented(LENGTH), 2, shuffle=True, persistent_workers=True, **FORKED),
}


class GoingOn(IterableDataset[int]):
    """Each pass goes on where the one before was left; its state says where."""

    def __init__(self, length: int) -> None:
        self.length, self.given, self.left = length, 0, 0

    def __iter__(self) -> Iterator[int]:
        self.left = self.left or self.length
        while self.left:
            self.left, self.given = self.left - 1, self.given + 1
            yield self.given

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given, "left": self.left}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given, self.left = state["given"], state["left"]


def behind_a_skipped_epoch() -> DataLoader[Any]:
    """A loader that has loaded the beginning of an epoch, to which the one before is led on."""
    loaders: list[DataLoader[Any]] = [DataLoader(GoingOn(LENGTH), 2) for _ in range(3)]
    next(iter(loaders[0]))
    loaders[0].skip(LENGTH)
    loaders[1].load_state_dict(loaders[0].state_dict())
    assert list(loaders[1]) == []
    loaders[2].load_state_dict(loaders[1].state_dict())
    return loaders[2]


class CountingSampler(Sampler[int]):
    """Counts its passes as soon as one begins."""

    def __init__(self, length: int) -> None:
        self.length, self.passes = length, 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return iter([(number + self.passes) % self.length for number in range(self.length)])

    def __len__(self) -> int:
        return self.length


class Passes(IterableDataset[int]):
    """Each pass is another one."""

    def __init__(self, length: int) -> None:
        self.length, self.passes = length, 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return iter(range(100 * self.passes, 100 * self.passes + self.length))


_ENGINE = ("supervisor", "staffing", "crew", "lanes")
_PLACES = (
    *(f"reading_services.engine.{name}" for name in _ENGINE),
    "torchpipe.data.assigned",
    "torchpipe.data.iterator",
)


@contextmanager
def beginning(make: Callable[[], DataLoader[Any]]) -> Iterator[DataLoader[Any]]:
    with seeded(5), make() as loader:
        random.gauss(0, 1), np.random.randn()  # so that one number of a pair waits
        yield loader


def whole(make: Callable[[], DataLoader[Any]], state: Any = None) -> list[str]:
    with beginning(make) as loader:
        if state is not None:
            loader.load_state_dict(state)
        return list(map(exact, loader))


def interrupted(
    loader: DataLoader[Any], interrupter: Interrupter, *, looks: bool, warm: int = WARM
) -> tuple[list[str], bool]:
    """The batches up to the interrupt, and whether all were handed out before it. ``looks``: at the global states."""
    stream = iter(loader)
    got = list(map(exact, islice(stream, warm)))
    before = outside()
    try:
        for _ in range(MORE):
            with interrupter:
                batch = next(stream)
            got.append(exact(batch))
    except Interrupt:
        return got, False
    finally:
        assert not looks or outside() == before, interrupter.hit
    return got, True


@pytest.mark.parametrize("name", IN_PROCESS)
def test_L2_an_interrupt_at_any_instruction(name: str) -> None:
    make, step, warm, places = IN_PROCESS[name], 2 if name == "iterable" else 4, WARM, PLACES
    if name in ("device", "an epoch was skipped"):
        step, warm, places = 7 if name == "device" else 83, 0, ("torchpipe",)
    number, beyond = before_first(step), False
    expected = whole(make)
    while not beyond:
        number += step
        interrupter = Interrupter(number, places)
        with beginning(make) as loader:
            got, beyond = interrupted(loader, interrupter, looks=name != "lazy sampler", warm=warm)
            state = loader.state_dict()
        assert got == expected[: len(got)]
        assert state["delivered"] == len(got), interrupter.hit
        assert whole(make, state) == expected[state["delivered"] :], interrupter.hit
    assert number > 20


@pytest.mark.parametrize("name", WORKERS)
def test_L2_an_interrupt_while_batches_of_workers_are_handed_out(name: str) -> None:
    make, beyond, number = WORKERS[name], False, before_first(19)
    expected = whole(make)
    while not beyond:
        number += 19
        interrupter = Interrupter(number, _PLACES)
        with beginning(make) as loader:
            got, beyond = interrupted(loader, interrupter, looks=True)
            state = loader.state_dict()
        rest = whole(make, state)
        assert sorted(got + rest) == sorted(set(got + rest)), interrupter.hit
        assert len(got) + len(rest) == len(expected), interrupter.hit
        assert set(got + rest) <= set(expected), interrupter.hit
        if name != "out of order":
            assert got == expected[: len(got)]
            assert rest == expected[len(expected) - len(rest) :], interrupter.hit
    assert number > 20


@pytest.mark.parametrize("name", BEGINNING)
def test_L2_an_iter_that_is_interrupted_has_begun_and_drawn_nothing(name: str) -> None:
    make, step = BEGINNING[name], 17 if name == "persistent workers" else 5
    with beginning(make) as loader:
        expected = [list(map(exact, loader)) for _ in range(3)]
    number, beyond = before_first(step), False
    while not beyond:
        number += step
        interrupter = Interrupter(number, ("torchpipe.data", "torchpipe.loader", "torchpipe.randomness"))
        with beginning(make) as loader:
            assert list(map(exact, loader)) == expected[0]
            beyond = True
            try:
                with interrupter:
                    stream = iter(loader)
            except Interrupt:
                beyond = False
                stream = iter(loader)
            assert list(map(exact, stream)) == expected[1], interrupter.hit
            del stream
            assert list(map(exact, loader)) == expected[2], interrupter.hit


STRIKES: dict[int, type[BaseException]] = {}


class Struck(Sampler[int]):
    """Keeps what it has given in all, draws for each, and is struck in the midst of one of these, once."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.random, self.torch = random.Random(1), torch.Generator().manual_seed(2)
        self.passes = self.given = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        for number in range(self.length):
            self.given += 1
            drawn = self.random.randrange(100) + int(torch.randint(100, (1,), generator=self.torch))
            if self.given in STRIKES:
                raise STRIKES.pop(self.given)
            yield (number + self.passes + self.given + drawn) % self.length

    def __len__(self) -> int:
        return self.length


@pytest.mark.parametrize("error", [Interrupt, ValueError])
@pytest.mark.parametrize("here", [True, False], ids=["the same loader", "another loader"])
def test_L2_a_sampler_that_is_struck_gives_what_it_gives_else(error: type[BaseException], here: bool) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Numbers(6), 2, sampler=Struck(6))

    expected = [[batch.tolist() for batch in loader] for loader in [make()] for _ in range(3)]
    for at in range(1, 13):
        loader, STRIKES[at] = make(), error
        found: list[list[Any]] = [[], [], []]
        while (epoch := loader.epoch) < 3:
            try:
                found[epoch].extend(batch.tolist() for batch in loader)
            except error:
                state = loader.state_dict()
                loader = loader if here else make()
                loader.load_state_dict(state)
        assert found == expected, at
