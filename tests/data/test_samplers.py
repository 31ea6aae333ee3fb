"""Samplers of every kind: a run that is stopped twice, anywhere, gives what an unbroken one gives.

What ordinary samplers keep: generators under any name, counters, lists that they shuffle in place, their own states.
"""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler

from tests.data.datasets import Numbers
from torchpipe import DataLoader
from torchpipe.errors import StateError

LENGTH, EPOCHS = 8, 4


class Own(Sampler[int]):
    """Counts its epochs itself, and says all in its state."""

    def __init__(self) -> None:
        self.epoch, self.position, self.loaded = 0, 0, False

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        if not self.loaded:
            self.position = 0
        self.loaded = False
        order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        while self.position < LENGTH:
            self.position += 1
            yield order[self.position - 1]
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.position, self.loaded = state["epoch"], state["position"], True


class Wrapping(Sampler[int]):
    """Its state after an epoch's last index is that of the next epoch's start: it counts the samples of all epochs."""

    def __init__(self) -> None:
        self.consumed = 0

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        epoch, start = divmod(self.consumed, LENGTH)
        order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(epoch)).tolist()
        for index in order[start:]:
            self.consumed += 1
            yield index

    def state_dict(self) -> dict[str, Any]:
        return {"consumed": self.consumed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.consumed = state["consumed"]


class Keeping(Sampler[int]):
    """Draws from what it keeps under ``rng``; lazily, or all at once."""

    def __init__(self, rng: Any, lazy: bool) -> None:
        self.rng = rng
        self.lazy = lazy

    def __len__(self) -> int:
        return LENGTH

    def _draw(self) -> int:
        match self.rng:
            case random.Random():
                return self.rng.randrange(LENGTH)
            case np.random.Generator():
                return int(self.rng.integers(LENGTH))
            case np.random.RandomState():
                return int(self.rng.randint(LENGTH))
            case _:
                return int(torch.randint(LENGTH, (), generator=self.rng))

    def __iter__(self) -> Iterator[int]:
        drawn = (self._draw() for _ in range(LENGTH))
        return drawn if self.lazy else iter(list(drawn))


class InPlace(Sampler[int]):
    """Shuffles one list again and again, and counts its passes when they end."""

    def __init__(self) -> None:
        self.order = list(range(LENGTH))
        self.passes = 0

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        random.Random(self.passes).shuffle(self.order)
        yield from self.order
        self.passes += 1


class Inside:
    """A generator that a sampler has in an object."""

    __slots__ = ("rng",)

    def __init__(self) -> None:
        self.rng = random.Random(8)


class Hiding(Sampler[int]):
    """Draws from a generator in an object, in a list, or made when it is first used."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.held: Any = {"object": Inside(), "list": [0, random.Random(8)], "first use": None}[where]

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        if self.held is None:
            self.held = torch.Generator().manual_seed(8)
        for _ in range(LENGTH):
            match self.held:
                case Inside():
                    yield self.held.rng.randrange(LENGTH)
                case list():
                    yield self.held[1].randrange(LENGTH)
                case generator:
                    yield int(torch.randint(LENGTH, (), generator=generator))


class CountsItself(Sampler[int]):
    """Has ``set_epoch``, as DistributedSampler has it, and goes on by itself where nobody calls it."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return LENGTH

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        self.epoch += 1
        return iter(order)


class New(Sampler[int]):
    """Remembers by an attribute that it makes when it is first used."""

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        self.seen = getattr(self, "seen", 0) + 1
        return iter(torch.randperm(LENGTH, generator=torch.Generator().manual_seed(self.seen)).tolist())


class Global(Sampler[int]):
    """Draws from one of the process's generators each time it is asked."""

    def __init__(self, draw: Callable[[], int]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        for _ in range(LENGTH):
            yield self.draw()


class Ragged(Sampler[list[int]]):
    """Batches of random sizes; its length is an estimate."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(5)

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[list[int]]:
        left = self.rng.permutation(LENGTH).tolist()
        while left:
            size = int(self.rng.integers(1, 4))
            yield left[:size]
            left = left[size:]


class Repeating(Sampler[Any]):
    """Never ends, over another sampler: as in ultralytics' loader."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


def _draw_torch() -> int:
    return int(torch.randint(LENGTH, ()))


def _draw_random() -> int:
    return random.randrange(LENGTH)


def _draw_numpy() -> int:
    return int(np.random.randint(LENGTH))


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffle": lambda: {"shuffle": True},
    "shuffle, generator": lambda: {"shuffle": True, "generator": _generator()},
    "replacement": lambda: {"sampler": RandomSampler(range(LENGTH), replacement=True)},
    "replacement, generator": lambda: {
        "sampler": RandomSampler(range(LENGTH), replacement=True, num_samples=20, generator=_generator())
    },
    "subset": lambda: {"sampler": SubsetRandomSampler(range(LENGTH))},
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0, 2.0] * 4, LENGTH)},
    "rollover": lambda: {"shuffle": True, "last_batch": "rollover", "batch_size": 3},
    "rollover, generator": lambda: {
        "shuffle": True, "last_batch": "rollover", "batch_size": 3, "generator": _generator()
    },
    "rollover, own": lambda: {"sampler": InPlace(), "last_batch": "rollover", "batch_size": 3},
    "own state": lambda: {"sampler": Own()},
    "own state, in batches": lambda: {"batch_sampler": BatchSampler(Own(), 3, drop_last=True)},
    "wrapping state": lambda: {"sampler": Wrapping()},
    "numpy": lambda: {"sampler": Keeping(np.random.default_rng(0), True)},
    "numpy's former": lambda: {"sampler": Keeping(np.random.RandomState(0), False)},
    "random": lambda: {"sampler": Keeping(random.Random(0), True)},
    "torch": lambda: {"sampler": Keeping(_generator(), False)},
    "torch, lazy": lambda: {"sampler": Keeping(_generator(), True)},
    "in place": lambda: {"sampler": InPlace()},
    "in an object": lambda: {"sampler": Hiding("object")},
    "in a list": lambda: {"sampler": Hiding("list")},
    "made when used": lambda: {"sampler": Hiding("first use")},
    "counts, and is told": lambda: {"sampler": CountsItself()},
    "a new attribute": lambda: {"sampler": New()},
    "one batch": lambda: {"sampler": Own(), "batch_size": LENGTH + 2},
    "global torch": lambda: {"sampler": Global(_draw_torch)},
    "global random": lambda: {"sampler": Global(_draw_random)},
    "global numpy": lambda: {"sampler": Global(_draw_numpy)},
    "ragged": lambda: {"batch_sampler": Ragged()},
    "a list": lambda: {"sampler": [3, 1, 2, 0, 7]},
}  # fmt: skip

WAYS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2, "prefetch_factor": 3},
    {"num_workers": 1, "device": "cpu"},
    {"num_workers": 2, "worker_method": "thread"},
    {"num_workers": 2, "in_order": False},
]


def script(kind: str, **way: Any) -> DataLoader[Any]:
    """As it begins, each time it is run."""
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    options = KINDS[kind]()
    if "batch_sampler" not in options:
        options = {"batch_size": 2} | options
    return DataLoader(Numbers(LENGTH), **options, **way)


def go_on(loader: DataLoader[Any], stop: int | None) -> list[tuple[int, list[int]]]:
    """The batches up to the end of ``EPOCHS``, or ``stop`` of them, in the loop that docs show."""
    found: list[tuple[int, list[int]]] = []
    while loader.epoch < EPOCHS and len(found) != stop:
        epoch = loader.epoch
        for batch in loader:
            found.append((epoch, batch.tolist()))
            if len(found) == stop:
                break
    return found


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch's default generator was put back")
        warnings.filterwarnings("ignore", "This DataLoader will create")
        yield
    random.setstate(states[0]), np.random.set_state(states[1])


@pytest.mark.parametrize("sampler", [Own, Wrapping])
def test_L2_epochs_of_one_batch_each_are_resumed_in_any_of_them(sampler: Any) -> None:
    """A state after the only batch may say that this pass is about to end, or that the next one begins."""

    def made() -> DataLoader[Any]:
        return DataLoader(Numbers(LENGTH), LENGTH + 2, sampler=sampler())

    whole = made()
    epochs = [[batch.tolist() for batch in whole] for _ in range(6)]
    for stop in range(5):
        loader = made()
        for _ in range(stop):
            list(loader)
        between = loader.state_dict()
        next(iter(loader))
        for state, rest in ((between, epochs[stop]), (loader.state_dict(), [])):
            again = made()
            again.load_state_dict(state)
            expected = [rest, *epochs[stop + 1 :]]
            assert [[batch.tolist() for batch in again] for _ in expected] == expected, (stop, len(rest))
            again.load_state_dict(state)
            again.load_state_dict(again.state_dict())  # on the way
            assert [batch.tolist() for batch in again] == rest


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_L2_a_run_that_is_stopped_twice_is_the_unbroken_one(kind: str) -> None:
    with script(kind) as loader:
        expected = go_on(loader, None)
    for number, first in enumerate(range(1, 8)):
        second = (1, 2, 5)[number % 3]
        ways = [WAYS[(number + place) % (4 if place != 1 else 5)] for place in range(3)]
        found, state = [], None
        for way, stop in zip(ways, (first, second, None)):
            with script(kind, **way) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                found += go_on(loader, stop)
                state = loader.state_dict()
        got = [batch for _, batch in found] if ways[1].get("in_order", True) else sorted(batch for _, batch in found)
        want = [batch for _, batch in expected]
        assert got == (want if ways[1].get("in_order", True) else sorted(want)), (first, second, ways)
        assert [epoch for epoch, _ in found] == [epoch for epoch, _ in expected], (first, second, ways)


@pytest.mark.nightly
@pytest.mark.parametrize("stop", range(1, 7))
def test_L2_out_of_order_no_batch_of_a_later_epoch_is_dropped(stop: int) -> None:
    for kind in ("own state", "shuffle, generator"):
        with script(kind) as loader:
            expected = go_on(loader, None)
        for workers in (2, 3):
            with script(kind, num_workers=workers, in_order=False) as loader:
                found = go_on(loader, 4 + stop % 4)
                state = loader.state_dict()
            with script(kind, num_workers=workers, in_order=False) as loader:
                loader.load_state_dict(state)
                found += go_on(loader, None)
            assert sorted(found) == sorted(expected), (kind, stop, workers)


def test_L2_an_endless_sampler_goes_on_in_its_next_round() -> None:
    def endless(**way: Any) -> DataLoader[Any]:
        loader = script("shuffle", **way)
        object.__setattr__(loader, "batch_sampler", Repeating(loader.batch_sampler))
        return loader

    expected = [batch.tolist() for batch in itertools.islice(endless(), 20)]
    for stop in (1, 4, 6, 11):
        for way in WAYS[:3]:
            with endless(**way) as loader:
                found = [batch.tolist() for batch in itertools.islice(loader, stop)]
                state = loader.state_dict()
            with endless() as loader:
                loader.load_state_dict(state)
                assert found + [batch.tolist() for batch in itertools.islice(loader, 20 - stop)] == expected


class NeverEnding(DataLoader[Any]):
    """Goes on with the next epoch by itself."""

    def __iter__(self) -> Any:
        while True:
            yield from DataLoader.__iter__(self)


class OneIterator(DataLoader[Any]):
    """ultralytics' way: one endless iterator, made with the loader, hands out each epoch's batches."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        object.__setattr__(self, "batch_sampler", Repeating(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)  # type: ignore[union-attr]

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            yield next(self.iterator)

    def reset(self) -> None:
        self.iterator = self._get_iterator()


@pytest.mark.parametrize("kind", [NeverEnding, OneIterator])
@pytest.mark.parametrize("workers", [0, 2])
def test_L2_subclasses_that_never_end_go_on_in_a_later_epoch(kind: Any, workers: int) -> None:
    def begun(state: Any = None) -> Any:
        torch.manual_seed(0)
        loader = kind(Numbers(LENGTH), batch_size=2, shuffle=True, num_workers=workers)
        if state is not None:
            loader.load_state_dict(state)
            if kind is OneIterator:
                loader.reset()
        return loader, (batch.tolist() for _ in range(5) for batch in loader)

    expected = list(itertools.islice(begun()[1], 18))
    for stop in (2, 5, 9):
        loader, stream = begun()
        found = list(itertools.islice(stream, stop))
        state = loader.state_dict()
        loader.shutdown()
        assert found + list(itertools.islice(begun(state)[1], 18 - stop)) == expected


@pytest.mark.parametrize("way", WAYS[:4])
def test_L1_the_epoch_after_a_break_does_not_depend_on_workers(way: dict[str, Any]) -> None:
    def run(**way: Any) -> list[list[int]]:
        with script("shuffle, generator", **way) as loader:
            return [batch.tolist() for _ in range(3) for batch in itertools.islice(loader, 2)]

    assert run(**way) == run()


TAKEN_BACK = [
    name
    for name in KINDS
    if not name.startswith(("global", "shuffle", "replacement", "subset", "weighted"))
    or name in ("shuffle, generator", "replacement, generator")
]


@pytest.mark.parametrize("kind", TAKEN_BACK)
def test_L2_a_loader_that_was_used_is_taken_back(kind: str) -> None:
    """To before the first epoch, between two, and into one; then all follows as it did."""
    with script(kind) as loader:
        expected = go_on(loader, None)
        first = sum(epoch == 0 for epoch, _ in expected)
    loader = script(kind)
    states = [loader.state_dict()]
    for stop in (1, first, first + 1):
        loader.load_state_dict(states[0])
        found = go_on(loader, stop)
        assert found == expected[:stop], "from the start"
        states.append(loader.state_dict())
    for stop, state in ((1, states[1]), (first + 1, states[3]), (1, states[1]), (0, states[0])):
        loader.load_state_dict(state)
        assert go_on(loader, None) == expected[stop:], stop
    if (
        kind != "rollover" and "generator" not in kind
    ):  # those of the process, and generator=, are the user's to put back
        loader.load_state_dict({})
        assert go_on(loader, None) == expected, "it was forgotten"


@pytest.mark.parametrize("kind", ["weighted", "subset"])
def test_L2_what_the_loop_changes_in_torchs_samplers_lasts(kind: str) -> None:
    def run(stop: int | None, state: Any = None) -> Any:
        loader = script(kind)
        if state is not None:
            loader.load_state_dict(state)
        found = []
        while loader.epoch < EPOCHS:
            for batch in loader:
                found.append(batch.tolist())
            if kind == "weighted":
                loader.sampler.weights[loader.epoch] = 100.0
            else:
                loader.sampler.indices = [index + 1 for index in range(loader.epoch, LENGTH - 1)]
            if loader.epoch == stop:
                break
        return found, loader.state_dict()

    expected, _ = run(None)
    for stop in (1, 2, 3):
        head, state = run(stop)
        rest, _ = run(None, state)
        assert head + rest == expected, stop


@pytest.mark.parametrize("stop", [3, 4])
def test_L3_a_state_moves_between_workers_that_persist_and_those_that_do_not(stop: int) -> None:
    """One base seed for all epochs, or one for each: the orders of later epochs are drawn behind it."""
    ways: list[dict[str, Any]] = [{}, {"num_workers": 1, "persistent_workers": True}]
    for first, other in (ways, ways[::-1]):
        with script("shuffle", **first) as loader:
            expected = go_on(loader, None)
        with script("shuffle", **first) as loader:
            found = go_on(loader, stop)
            state = loader.state_dict()
        with script("shuffle", **other) as loader:
            loader.load_state_dict(state)
            assert found + go_on(loader, None) == expected, (first, other)


class Growing(Numbers):
    """As long as its owner says."""


@pytest.mark.parametrize("shuffle", [False, True])
def test_L2_an_epoch_keeps_the_length_and_the_batch_size_that_it_began_with(shuffle: bool) -> None:
    def run(stop: int | None, state: Any = None) -> Any:
        torch.manual_seed(0)
        loader = DataLoader(Growing(12), 4, shuffle=shuffle)
        sampler: Any = loader.batch_sampler
        found, count = [], 0
        if state is not None:
            loader.load_state_dict(state)
            count = stop or 0
        while loader.epoch < 3:
            for batch in loader:
                found.append(batch.tolist())
                count += 1
                if count == 1:
                    sampler.batch_size = 2
                if count == 5:
                    loader.dataset.length = 16
                if state is None and count == stop:
                    return found, loader.state_dict()
        return found, None

    expected, _ = run(None)
    assert [len(batch) for batch in expected] == [4] * 3 + [2] * 6 + [2] * 8
    for stop in (1, 2, 3, 4):
        head, state = run(stop)
        assert head + run(stop, state)[0] == expected, stop
    loader = DataLoader(Growing(12), 4, shuffle=shuffle)
    stream = iter(loader)
    list(itertools.islice(stream, 3))
    state = loader.state_dict()
    other = DataLoader(Growing(12), 4, shuffle=shuffle)
    other.load_state_dict(state)
    other.dataset.length = 16  # as the loop does at an epoch's start
    assert list(other) == []
    assert len(list(other)) == 4


class Clock(Sampler[int]):
    """Its order depends on what no state can hold."""

    calls = itertools.count()

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(LENGTH, generator=torch.Generator().manual_seed(next(self.calls))).tolist())

    def __len__(self) -> int:
        return LENGTH


class Place:
    """An index of the user's, without a __repr__."""

    def __init__(self, number: int) -> None:
        self.number = number


class AnyKind:
    """Reads a whole batch by indices of any kind."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("a batch is asked for at once")

    def __getitems__(self, indices: Any) -> list[int]:
        return [getattr(index, "number", 0) if not isinstance(index, torch.Tensor) else int(index) for index in indices]


class Batches(Sampler[Any]):
    """Makes its batches anew in each pass; ``changed`` is added in the middle of the first of them."""

    changed = 0

    def __init__(self, make: Callable[[list[int]], Any]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        for number in range(3):
            numbers = list(range(number, number + 1200))
            if not number:
                numbers[600] += Batches.changed
            yield self.make(numbers)

    def __len__(self) -> int:
        return 3


def places(numbers: list[int]) -> Any:
    return [Place(number) for number in numbers]


def numpys(numbers: list[int]) -> Any:
    return list(np.array(numbers))


OF_INDICES = {"objects": places, "a tensor": torch.tensor, "numpy": numpys, "an array": np.array, "a set": frozenset}


@pytest.mark.parametrize("make", OF_INDICES.values(), ids=OF_INDICES)
def test_L2_batches_are_compared_by_the_values_of_their_indices(
    make: Callable[[list[int]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def loader() -> Any:
        return DataLoader(AnyKind(), batch_sampler=Batches(make), collate_fn=len)

    begun = iter(loader_ := loader())
    next(begun)
    state = loader_.state_dict()
    torch.set_printoptions(threshold=10)
    try:
        (again := loader()).load_state_dict(state)
        assert list(again) == list(begun)
    finally:
        torch.set_printoptions(profile="default")
    monkeypatch.setattr(Batches, "changed", 2000)
    (other := loader()).load_state_dict(state)
    with pytest.raises(StateError, match="Batches does not give the batches again"):
        list(other)


def test_L7_an_order_that_is_not_given_again_is_refused() -> None:
    loader = DataLoader(Numbers(LENGTH), 2, sampler=Clock())
    for _ in itertools.islice(loader, 2):
        state = loader.state_dict()
    loader.load_state_dict(state)
    with pytest.raises(StateError, match="Clock does not give the batches again"):
        iter(loader)


class Opaque(Sampler[int]):
    def __init__(self) -> None:
        self.stream: Any = None

    def __iter__(self) -> Iterator[int]:
        self.stream = (index for index in range(LENGTH))
        return self.stream  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return LENGTH


def test_L7_what_no_state_can_hold_is_told_when_one_is_saved() -> None:
    loader = DataLoader(Numbers(LENGTH), 2, sampler=Opaque())
    loader.state_dict()
    list(loader)
    with pytest.warns(UserWarning, match=r"does not hold Opaque\.stream \(generator\)"):
        loader.state_dict()


def test_L2_a_generator_put_back_again_and_again_is_told_of() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loader = script("shuffle")
        state = loader.state_dict()
        for _ in range(2):
            loader.load_state_dict(state)
            list(loader)
    assert sum("put back, for the second time" in str(item.message) for item in told) == 1
