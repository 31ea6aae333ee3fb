"""``DataLoader.skip``: what follows is as if the batches had been taken, and no sample of theirs is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.datasets import Augmented, FailingAt, Numbers
from tests.data.test_L2_exact_resume import NAMES, seeded_loader
from tests.skipping import driven, steps
from tests.tries import tries
from torchpipe import DataLoader


@pytest.mark.parametrize("name", NAMES)
@given(program=steps)
@settings(max_examples=tries(25))
def test_L2_a_skip_is_as_many_nexts(name: str, program: list[tuple[str, int]]) -> None:
    make = seeded_loader(name)
    assert driven(lambda _: make(), program, True) == driven(lambda _: make(), program, False)


WORKERS: tuple[dict[str, Any], ...] = (
    {"num_workers": 2},
    {"num_workers": 1, "prefetch_factor": 3, "persistent_workers": True},
    {"num_workers": 2, "device": "cpu"},
    {"num_workers": 2, "worker_seeding": "torch"},
)


@pytest.mark.parametrize("options", WORKERS, ids=str)
@given(name=st.sampled_from(["shuffle with generator", "weighted with generator", "stateful sampler"]), program=steps)
@settings(max_examples=tries(4))
def test_L2_with_workers_and_other_ones_after_a_resume(
    options: dict[str, Any], name: str, program: list[tuple[str, int]]
) -> None:
    make = seeded_loader(name)
    others = {} if "worker_seeding" not in options else options
    if "persistent_workers" in options:
        others = options  # which draw one base seed for all epochs

    def made(resumes: int) -> DataLoader[Any]:
        return make(**(others if resumes % 2 else options))

    assert driven(made, program, True) == driven(made, program, False)


class CountingReads(Numbers):
    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._read: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self._read.append(index)
        return super().__getitem__(index)


def test_nothing_is_read_of_what_is_skipped() -> None:
    data = CountingReads(1000)
    torch.manual_seed(1)
    loader: DataLoader[Any] = DataLoader(data, batch_size=10, shuffle=True)
    assert loader.skip(40) == 40
    assert data._read == []
    stream = iter(loader)
    first = next(stream)
    assert loader.skip(30) == 30
    second = next(stream)
    assert data._read == [*first.tolist(), *second.tolist()]
    assert loader.state_dict()["delivered"] == 72
    torch.manual_seed(1)
    whole = [batch.tolist() for batch in DataLoader(Numbers(1000), batch_size=10, shuffle=True)]
    assert [first.tolist(), second.tolist()] == [whole[40], whole[71]]


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_workers_are_dealt_none_of_what_is_skipped_behind_what_they_have(method: Any) -> None:
    data = FailingAt(1000, tuple(range(400, 900)), ValueError)
    loader: DataLoader[Any] = DataLoader(data, 10, num_workers=2, worker_method=method)
    with loader:
        stream = iter(loader)
        next(stream)
        assert loader.skip(89) == 89  # those that raise are behind all the same
        assert next(stream).tolist() == list(range(900, 910))
        assert loader.skip(100) == 9
        assert next(stream, None) is None
        assert loader.epoch == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_raises_is_behind_when_it_is_the_last_one(workers: int) -> None:
    for options in ({}, {"worker_seeding": "torch"}):
        loader: DataLoader[Any] = DataLoader(
            FailingAt(40, (15,), ValueError),
            5,
            num_workers=workers,
            **options,  # type: ignore[arg-type]
        )
        with loader:
            assert loader.skip(4) == 4
            assert next(iter(loader)).tolist() == [20, 21, 22, 23, 24]
        with loader:
            loader.load_state_dict({})
            stream = iter(loader)
            next(stream)
            assert loader.skip(3) == 3
            assert loader.state_dict()["delivered"] == 4
            assert next(stream).tolist() == [20, 21, 22, 23, 24]


def test_a_skip_counts_for_enumerate_and_stats_and_refuses_what_is_no_count() -> None:
    loader: DataLoader[Any] = DataLoader(Augmented(40), 4)
    loader.skip(2)
    numbers = []
    for number, _ in loader.enumerate():
        numbers.append(number)
        if number == 3:
            loader.skip(4)
    assert numbers == [2, 3, 8, 9]
    assert loader.stats().delivered == 10
    for wrong in (-1, 1.5, None):
        with pytest.raises((ValueError, TypeError), match="steps"):
            loader.skip(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_before_one_that_the_sampler_does_not_give_are_behind(workers: int) -> None:
    class Breaks(torch.utils.data.Sampler[int]):
        def __len__(self) -> int:
            return 40

        def __iter__(self) -> Any:
            yield from range(24)
            raise OSError("the index is gone")

    with DataLoader(Numbers(40), 4, sampler=Breaks(), num_workers=workers) as loader:
        stream = iter(loader)
        next(stream)
        with pytest.raises(OSError, match="the index is gone"):
            loader.skip(8)
        assert loader.state_dict()["delivered"] == 6
