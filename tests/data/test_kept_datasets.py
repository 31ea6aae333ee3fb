"""Iterable datasets that go on from one pass to the next, without a state of their own: kept, or what differs is told.

They count their epochs, draw from a generator that they hold, shuffle a list in place, as torch's users write them.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, get_worker_info

from tests.keeping import LEAVES, draw, order_of, specs
from tests.keeping import make as make_kept
from torchpipe import DataLoader
from torchpipe.errors import ReplayWarning, StateError
from torchpipe.values import check, kept_of

LENGTH, EPOCHS = 12, 3


def _part() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class Base(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        part, parts = _part()
        return iter(self.order(list(range(part, LENGTH, parts))))

    def order(self, mine: list[int]) -> list[int]:
        raise NotImplementedError


class Counts(Base):
    epoch = 0

    def order(self, mine: list[int]) -> list[int]:
        self.epoch += 1
        random.Random(self.epoch).shuffle(mine)
        return mine


class Told(Counts):
    """Is told its epoch, and goes on by itself."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Draws(Base):
    def __init__(self) -> None:
        self.rng = random.Random(3)

    def order(self, mine: list[int]) -> list[int]:
        self.rng.shuffle(mine)
        return mine


class Inner:
    def __init__(self) -> None:
        self.rngs = [np.random.default_rng(4)]


class DrawsDeep(Base):
    def __init__(self) -> None:
        self.inner = Inner()

    def order(self, mine: list[int]) -> list[int]:
        return [mine[place] for place in self.inner.rngs[0].permutation(len(mine))]


class DrawsLate(Base):
    """Makes its generator when it is used, and draws with each item."""

    generator: Any = None

    def __iter__(self) -> Iterator[int]:
        if self.generator is None:
            self.generator = torch.Generator().manual_seed(5)
        for item in super().__iter__():
            yield 100 * item + int(torch.randint(100, (), generator=self.generator))

    def order(self, mine: list[int]) -> list[int]:
        return mine


class InPlace(Base):
    def __init__(self) -> None:
        self.mine: list[int] = []

    def order(self, mine: list[int]) -> list[int]:
        self.mine = self.mine or mine
        self.mine.append(self.mine.pop(0))
        return self.mine


class LongInPlace(Base):
    """Shuffles a long list of file names, as many as a large data set has."""

    def __init__(self) -> None:
        self.files, self.rng = [f"{number:05}.tar" for number in range(3000)], random.Random(6)

    def order(self, mine: list[int]) -> list[int]:
        self.rng.shuffle(self.files)
        return [mine[int(name[:5]) % len(mine)] for name in self.files[: len(mine)]]


class ReadsLate(Counts):
    """Reads its data when they are first needed."""

    rows: Any

    def __init__(self) -> None:
        self.rows = None

    def order(self, mine: list[int]) -> list[int]:
        if self.rows is None:
            self.rows = list(range(200_000))
        return super().order([self.rows[row] for row in mine])


class WithState(Counts):
    """Its state says where it is in a pass, and not which one it is."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        order = list(super().__iter__())
        while self.at < len(order):
            self.at += 1
            yield order[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch - 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


KINDS = [Counts, Told, Draws, DrawsDeep, DrawsLate, InPlace, LongInPlace, ReadsLate]
WAYS: dict[str, dict[str, Any]] = {
    "in process": {},
    "workers": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def make(kind: Any, way: str, state: Any = None) -> Any:
    torch.manual_seed(0)
    loader = DataLoader(kind(), batch_size=2, **WAYS[way])
    if state is not None:
        loader.load_state_dict(state)
    return loader


def take(loader: Any, stop: int | None = None) -> list[list[int]]:
    found: list[list[int]] = []
    while loader.epoch < EPOCHS and len(found) != stop:
        for batch in loader:
            found.append(batch.tolist())
            if len(found) == stop:
                break
    return found


def ended(kind: Any, way: str, epochs: int) -> Any:
    """The state when so many epochs have ended."""
    loader = make(kind, way)
    for _ in range(epochs):
        list(loader)
    state = loader.state_dict()
    loader.shutdown()
    return state


@pytest.mark.parametrize("kind", KINDS)
def test_L2_in_process_a_later_epoch_goes_on(kind: Any) -> None:
    expected = take(make(kind, "in process"))
    each = len(expected) // EPOCHS
    assert expected[:each] != expected[each : 2 * each], "epochs differ"
    for stop in (1, each, each + 1, 2 * each + 2):
        loader = make(kind, "in process")
        found = take(loader, stop)
        state = loader.state_dict()
        assert found + take(make(kind, "in process", state)) == expected, stop
        loader.load_state_dict(state)
        assert found + take(loader) == expected, "taken back here"
    for epochs in (1, 2):
        assert take(make(kind, "in process", ended(kind, "in process", epochs))) == expected[epochs * each :]


@pytest.mark.parametrize("kind", [Counts, DrawsDeep])
def test_L2_in_process_it_is_taken_back_to_its_start(kind: Any) -> None:
    loader = make(kind, "in process")
    start = loader.state_dict()
    expected = take(loader)
    for state in (start, {}):
        loader.load_state_dict(state)
        assert take(loader) == expected
    loader.load_state_dict({})
    stream = iter(loader)
    begun = loader.state_dict()
    assert [batch.tolist() for batch in stream] == expected[: len(expected) // EPOCHS]
    loader.load_state_dict(begun)
    assert take(loader) == expected, "a state from before the first batch"


@pytest.mark.parametrize("way", ["workers", "persistent"])
@pytest.mark.parametrize("kind", [Counts, DrawsLate, WithState])
def test_L2_with_workers_a_later_epoch_goes_on(kind: Any, way: str) -> None:
    loader = make(kind, way)
    expected = take(loader)
    loader.shutdown()
    each = len(expected) // EPOCHS
    loader = make(kind, way)
    found = take(loader, each + 1)
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert found + take(loader) == expected, "taken back here"
    loader.load_state_dict({})
    assert take(loader, each) == expected[:each], "taken back to the start"
    loader.shutdown()
    with make(kind, way, state) as other:
        assert found + take(other) == expected
    with make(kind, way, ended(kind, way, 1)) as other:
        assert take(other) == expected[each:]


@pytest.mark.parametrize("kind", [Counts, WithState])
def test_L3_a_state_moves_between_workers_that_persist_and_those_that_do_not(kind: Any) -> None:
    for first, other in (("workers", "persistent"), ("persistent", "workers")):
        with make(kind, first) as loader:
            expected = take(loader)
        each = len(expected) // EPOCHS
        with make(kind, first) as loader:
            found = take(loader, each + 1)
            state = loader.state_dict()
        with make(kind, other, state) as loader:
            assert found + take(loader) == expected, (first, other)
        with make(kind, other, ended(kind, first, 1)) as loader:
            assert take(loader) == expected[each:], (first, other)


@pytest.mark.parametrize("kind", [Counts, Draws])
@pytest.mark.parametrize("before", [0, 1, 4])
def test_L4_a_worker_that_dies_in_a_later_epoch_is_replaced_where_it_was(kind: Any, before: int) -> None:
    with make(kind, "persistent") as loader:
        expected = take(loader)
    with make(kind, "persistent") as loader:
        found = [batch.tolist() for batch in loader]
        stream = iter(loader)
        if not before:
            os.kill(loader.worker_pids()[1], signal.SIGKILL)
        for number, batch in enumerate(stream, 1):
            found.append(batch.tolist())
            if number == before:
                os.kill(loader.worker_pids()[1], signal.SIGKILL)
        assert found + take(loader) == expected


_passes = itertools.count()


class Unseen(Base):
    """Goes on by what no state can hold: a number of the module's."""

    def order(self, mine: list[int]) -> list[int]:
        random.Random(next(_passes)).shuffle(mine)
        return mine


class Shuffles(Base):
    """Shuffles its data in place, which are too many to be kept."""

    def __init__(self) -> None:
        self.all = list(range(200_000))

    def order(self, mine: list[int]) -> list[int]:
        random.Random(1).shuffle(self.all)
        return self.all[: 2 * LENGTH]


class Set(Counts):
    """Its user sets what it gives, and what no state can hold."""

    scale = 1

    def __init__(self) -> None:
        self.parts = [{"shift": 0}]
        self.also: Any = None

    def order(self, mine: list[int]) -> list[int]:
        also = 0 if self.also is None else self.also(7)
        return [number * self.scale + self.parts[0]["shift"] + also for number in super().order(mine)]


class SetOnce(Set):
    """Its passes change nothing."""

    def order(self, mine: list[int]) -> list[int]:
        return [number * self.scale + self.parts[0]["shift"] for number in mine]


@pytest.mark.parametrize("kind", [Set, SetOnce])
@pytest.mark.parametrize("stop", [None, 2], ids=["at its end", "cut short"])
@pytest.mark.parametrize("begun", [False, True], ids=["between", "iter()"])
def test_L2_what_the_user_has_set_between_two_passes_is_in_a_state(kind: Any, stop: int | None, begun: bool) -> None:
    def user(dataset: Any) -> None:
        dataset.scale *= 10
        dataset.parts[0]["shift"] += 1
        dataset.parts.append(dataset.parts[0])

    dataset = kind()
    loader = DataLoader(dataset, 2, collate_fn=list)
    for _ in islice(loader, stop):
        pass
    loader.set_epoch(1)
    user(dataset)
    batches = iter(loader) if begun else None
    state = loader.state_dict()
    wanted = [list(loader if batches is None else batches), list(loader)]
    for number, workers in enumerate((0, 0, 1)):
        again = kind()
        with DataLoader(again, 2, collate_fn=list, num_workers=workers) as other:
            if number == 1:
                list(other), user(again)
            other.load_state_dict(state)
            assert [list(other) for _ in wanted] == wanted, workers
        if not workers:
            assert again.parts[0] is again.parts[1]
    loader.load_state_dict(state)
    assert [list(loader), list(loader)] == wanted


def test_L2_what_no_state_can_hold_is_used_all_the_same() -> None:
    dataset = Set()
    loader = DataLoader(dataset, None)
    first = sorted(loader)
    dataset.also = lambda number: number
    assert sorted(loader) == [number + 7 for number in first]


class Itself(IterableDataset[int]):
    """Is its own iterator, and begins anew with each ``iter()``."""

    at = 0
    closed = False

    def __iter__(self) -> Iterator[int]:
        self.at = 0
        return self

    def __next__(self) -> int:
        assert not self.closed
        self.at += 1
        if self.at > 5:
            raise StopIteration
        return self.at

    def close(self) -> None:
        self.closed = True


class ItselfByItsEnd(Itself):
    """Begins anew because it has ended."""

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        try:
            return super().__next__()
        except StopIteration:
            self.at = 0
            raise


@pytest.mark.parametrize("kind", [Itself, ItselfByItsEnd])
@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_L2_a_dataset_that_is_its_own_iterator(kind: Any, options: dict[str, Any]) -> None:
    more = {"batch_size": 2, "collate_fn": list, **options}
    theirs = TorchDataLoader(kind(), **more)
    with DataLoader(kind(), **more) as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore", ReplayWarning)
        for _ in range(2):
            assert [*loader] == [*theirs] == [[1, 2], [3, 4], [5]]
        batches = iter(loader)
        next(batches)
        if options:
            os.kill(loader.worker_pids()[0], signal.SIGKILL)
        state, rest = loader.state_dict(), [*batches]
        assert rest == [[3, 4], [5]]
        with DataLoader(kind(), **more) as resumed:
            resumed.load_state_dict(state)
            assert [*resumed, *resumed] == [*rest, *loader]


def test_L7_data_that_are_shuffled_in_place_are_told() -> None:
    loader = make(Shuffles, "in process")
    states = [loader.state_dict() for _ in loader][-1:]
    states.append(loader.state_dict())  # the next epoch's start, where there is nothing to replay
    assert take(make(Shuffles, "in process", states[0]), 0) == []
    with pytest.raises(StateError, match=r"Shuffles.all has other data .*state_dict\(\)"):
        list(make(Shuffles, "in process", states[1]))
    assert loader.epoch == 1
    assert len(list(loader)) == LENGTH, "the run itself goes on"


def test_L7_what_differs_in_a_replay_is_told() -> None:
    loader = make(Unseen, "in process")
    list(loader)
    stream = iter(loader)
    list(islice(stream, 3))
    for state, other in ((loader.state_dict(), loader), (loader.state_dict(), make(Unseen, "in process"))):
        other.load_state_dict(state)
        with pytest.raises(StateError, match=r"the iterable Unseen does not give again .*state_dict\(\)"):
            list(other)


def test_L7_a_successor_that_gives_other_items_is_told() -> None:
    with make(Unseen, "persistent") as loader:
        list(loader)
        stream = iter(loader)
        next(stream)
        state = loader.state_dict()
    with make(Unseen, "persistent", state) as other, pytest.raises(StateError, match="does not give again"):
        list(other)


def test_L8_what_a_state_says_of_a_dataset_is_checked() -> None:
    kept = kept_of(Counts())
    for steps in (["order"], ["__class__"], ["unknown", "rng"]):
        with pytest.raises(StateError, match="no place for it"):
            check(kept, [[steps, "value", 3]])


# -- of any kind --------------------------------------------------------------------------------------------------


class Keeping(IterableDataset[int]):
    """Draws from what it keeps when it is asked first, in the midst, and at the end."""

    def __init__(self, spec: Any) -> None:
        self.kept = make_kept(spec)

    def __iter__(self) -> Iterator[int]:
        part, parts = _part()
        for number in range(part, 4, parts):
            yield from order_of(draw(self.kept), LENGTH)[number : number + 1]
        draw(self.kept)


MIXED = ("dict of a class", [("named tuple", ["count", "views of numpy"]), "enum", "array", "other frozen", "random"])


def keeping(spec: Any, state: Any = None, **options: Any) -> Any:
    torch.manual_seed(0)
    loader = DataLoader(Keeping(spec), batch_size=1, **options)
    if state is not None:
        loader.load_state_dict(state)
    return loader


def resumes(spec: Any, stops: list[int], **options: Any) -> None:
    with keeping(spec, **options) as loader:
        expected = take(loader)
    for stop in stops:
        with keeping(spec, **options) as loader:
            assert take(loader, stop) == expected[:stop]
            state = loader.state_dict()
        with keeping(spec, state, **options) as loader:
            assert take(loader) == expected[stop:], stop


@pytest.mark.parametrize("name", LEAVES)
def test_L2_whatever_it_keeps_goes_on(name: str) -> None:
    resumes(name, [1, 4, 5, 8])


@settings(max_examples=8, deadline=None)
@given(specs())
def test_L2_whatever_it_keeps_in_any_nesting_goes_on(spec: Any) -> None:
    resumes(spec, [0, 1, 4, 5, 7, 8])


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1, "multiprocessing_context": "fork"},
        {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
    ],
    ids=["one", "forked"],
)
def test_L2_whatever_it_keeps_goes_on_with_workers(options: dict[str, Any]) -> None:
    resumes(MIXED, [1, 4, 6, 8], **options)


def test_L2_whatever_it_keeps_goes_on_with_a_spawned_worker() -> None:
    resumes(MIXED, [6], num_workers=1, multiprocessing_context="spawn", persistent_workers=True)


def test_L4_whatever_it_keeps_goes_on_behind_a_kill_between_two_epochs() -> None:
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    with keeping(MIXED, **options) as loader:
        expected = take(loader)
    with keeping(MIXED, **options) as loader:
        found = [batch.tolist() for batch in loader]
        os.kill(loader._iterator._workers[0].pid, signal.SIGKILL)
        assert found + take(loader) == expected


def test_L7_what_cannot_be_taken_down_is_told_when_the_first_epoch_has_ended() -> None:
    for options in ({}, {"num_workers": 1}):
        with DataLoader(HasStream(), **options) as loader, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            list(loader), list(loader)
        texts = [str(item.message) for item in told if "do not hold" in str(item.message)]
        assert len(texts) == 1 + bool(options), texts  # workers that do not persist say it of each epoch
        assert "HasStream.stream (generator)" in texts[0]
        assert "state_dict()" in texts[0]


class HasStream(Base):
    stream: Any = None

    def order(self, mine: list[int]) -> list[int]:
        self.stream = self.stream or (number for number in mine)
        return mine


class Shares(Base):
    """Changes a list that shallow copies share."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def order(self, mine: list[int]) -> list[int]:
        self.seen += mine[:1]
        return mine


def test_what_the_user_sets_between_two_epochs_reaches_threads() -> None:
    dataset = SetOnce()
    with DataLoader(dataset, None, num_workers=2, worker_method="thread") as loader:
        for scale in (1, 2, 3):
            dataset.scale, dataset.parts = scale, [{"shift": scale}]
            loader.load_state_dict(loader.state_dict())
            assert sorted(loader) == [number * scale + scale for number in range(LENGTH)]
        dataset.parts[0]["shift"] = 7
        with pytest.raises(ValueError, match=r"SetOnce.parts\[0\], which all share, has been changed"):
            iter(loader)


def test_L7_threads_refuse_what_they_would_share() -> None:
    for kind, text in ((Draws, r"has a random generator \(Draws.rng\)"), (DrawsDeep, r"DrawsDeep.inner.rngs\[0\]")):
        with pytest.raises(ValueError, match=text):
            iter(DataLoader(kind(), num_workers=2, worker_method="thread"))
    with DataLoader(Shares(), num_workers=2, worker_method="thread") as loader:
        list(loader)
        with pytest.raises(ValueError, match=r"Shares.seen, which all share, has been changed"):
            iter(loader)
    expected = [item for epoch in [make(Counts, "workers")] for item in take(epoch)]
    with DataLoader(Counts(), 2, num_workers=2, worker_method="thread") as loader:
        assert take(loader) == expected
