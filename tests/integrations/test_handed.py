"""Trainers' hooks: from a state of any place, within the loop or behind it, the same batches follow as in one run."""

from __future__ import annotations

import gc
import random
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, Sampler

from tests.data.datasets import Lines
from torchpipe import DataLoader, DataLoader2
from torchpipe.errors import StateMismatchError
from torchpipe.integrations._handed import Counted, Handed
from torchpipe.iter import IterableWrapper

LENGTH, EPOCHS = 6, 3


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index


class ByEpoch(Sampler[int]):
    """Another order in each epoch that it is told."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = list(range(LENGTH))
        random.Random(self.epoch).shuffle(order)
        return iter(order)

    def __len__(self) -> int:
        return LENGTH


class ByCount(ByEpoch):
    """Counts for itself."""

    set_epoch = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[int]:
        order = super().__iter__()
        self.epoch += 1
        return order


def _graph() -> DataLoader2[Any]:
    loader = DataLoader2(IterableWrapper(range(2 * LENGTH)).shuffle().filter(lambda number: number % 2 == 0).batch(4))
    loader.seed(1)
    return loader


LOADERS = {
    "shuffled": lambda: DataLoader(Numbers(), 4, shuffle=True),
    "generator": lambda: DataLoader(Numbers(), 4, shuffle=True, generator=torch.Generator().manual_seed(2)),
    "told": lambda: DataLoader(Numbers(), 4, sampler=ByEpoch()),
    "counting": lambda: DataLoader(Numbers(), 4, sampler=ByCount()),
    "rollover": lambda: DataLoader(Numbers(), 4, shuffle=True, last_batch="rollover"),
    "graph": _graph,
}


@pytest.mark.parametrize("names", [False, True], ids=["counts", "names"])
@pytest.mark.parametrize("kind", LOADERS)
def test_L2_from_any_state_the_same_batches_follow(kind: str, names: bool) -> None:
    """``names``: the trainer says which epoch each pass is of, as Lightning does."""
    found: list[list[int]] = []
    states: list[tuple[int, int, Any]] = []  # (batches before it, the epoch that goes on, it)

    def run(start: int, state: Any = None) -> Iterator[tuple[list[int], int, Handed[Any]]]:
        torch.manual_seed(0)
        data: Handed[Any] = Handed(LOADERS[kind]()) if names else Counted(LOADERS[kind]())
        if state is not None:
            data.load_state_dict(state)
        for epoch in range(start, EPOCHS):
            if names:
                data.set_epoch(epoch)
            for batch in data:
                yield list(map(int, batch)), epoch, data
            yield [], epoch + 1, data

    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch, epoch, data in run(0):
            found += [batch] if batch else []
            states.append((len(found), epoch, data.state_dict()))
        for before, epoch, state in states:
            again = [batch for batch, _, _ in run(epoch, state) if batch]
            assert again == found[before:], (before, epoch)


def _cut_short(
    kind: str, *, says: bool, state: Any = None, saves: bool = True
) -> tuple[list[list[list[int]]], list[Any]]:
    """Three epochs of one batch each, and the states that were saved behind them. ``says``: before they are saved."""
    data: Counted[Any] = Counted(LOADERS[kind]())
    epochs, states = [], []
    if state is not None:
        data.load_state_dict(state)
    for _ in range(data.epoch, EPOCHS):
        found = []
        for batch in data:
            found.append(list(map(int, batch)))
            break
        epochs.append(found)
        if says:
            data.set_epoch(data.epoch)
        if saves:
            states.append(data.state_dict())
    return epochs, states


@pytest.mark.parametrize("kind", LOADERS)
def test_L2_epochs_cut_short_go_on_alike_if_the_state_says_so(kind: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not _cut_short(kind, says=False, saves=False)[1]
            torch.manual_seed(0)
            epochs, states = _cut_short(kind, says=True)
            for number, state in enumerate(states):
                torch.manual_seed(1)
                assert _cut_short(kind, says=True, state=state)[0] == epochs[number + 1 :]
        with pytest.warns(UserWarning, match=r"goes on with the rest of epoch \d; this run begins epoch \d"):
            _cut_short(kind, says=False)


def test_the_epoch_is_said_within_a_loop_for_the_next_one() -> None:
    data: Counted[Any] = Counted(LOADERS["told"]())
    for batch in data:
        if data.epoch == 1:
            data.set_epoch(2)
            first = batch
    assert data.epoch == 2
    assert [int(number) for batch in data for number in batch] == list(_of_epoch(2))
    assert list(map(int, first)) == list(_of_epoch(0))[:4]


def _of_epoch(epoch: int) -> Iterator[int]:
    sampler = ByEpoch()
    sampler.set_epoch(epoch)
    return iter(sampler)


def test_L6_who_made_the_function_ends_with_the_last_reference() -> None:
    """Trainers' own objects hold a loader, whose function may be a method of theirs; some switch the collector off."""

    class Holder:
        def __init__(self) -> None:
            self.data: Handed[Any] = Handed(self.make)

        def make(self) -> Any:
            return LOADERS["shuffled"]()

    holder = Holder()
    list(holder.data)
    reference = weakref.ref(holder)
    gc.disable()
    try:
        del holder
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("begins", [False, True])
def test_L7_an_epoch_that_a_trainer_would_leave_out_is_refused(kind: str, begins: bool) -> None:
    data: Handed[Any] = Handed(LOADERS[kind]())
    data.set_epoch(0)
    list(data)
    state, data = data.state_dict(), Handed(LOADERS[kind]())
    data.load_state_dict(state)
    if begins:  # as trainers do that take a batch before they know the epoch
        batches = iter(data)
        data.set_epoch(1)
        del batches
    data.set_epoch(2)
    with pytest.raises(StateMismatchError, match=r"begins epoch 2, .* an epoch would be left out"):
        next(iter(data))
    data.set_epoch(1)
    assert list(data)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("kind", ["graph", "generator", "iterable"])
def test_L7_a_state_behind_a_loop_that_was_left_is_told_of_if_it_was_saved(
    kind: str, saves: bool, held: bool, ahead: int
) -> None:
    """``ahead``: batches that the trainer has taken and not trained on, if the loader has no length that counts."""
    data: Counted[Any] = Counted(
        DataLoader(Lines(8), 2) if kind == "iterable" else LOADERS[kind](), unused=lambda: ahead
    )
    for _ in range(2):
        stream: Any = iter(data)
        for _ in range(1 + (ahead and not data.counts)):
            next(stream)
        if saves:
            data.state_dict()
        if not held:
            stream = None
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            next(iter(data))
        assert {"let go of its iterator" in str(warning.message) for warning in told} == ({True} if saves else set())
        data.set_epoch(data.epoch)
