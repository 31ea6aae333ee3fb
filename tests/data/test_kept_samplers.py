"""Samplers whose order is drawn from what they keep: a loader's state goes on with it, wherever it is taken."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch.utils.data import RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler

from tests.data.datasets import Numbers
from tests.keeping import LEAVES, draw, make, order_of, specs
from torchpipe import DataLoader
from torchpipe.errors import StateMismatchError
from torchpipe.values import object_tracker
from torchpipe.values.object_contents import Memory, contents_of

LENGTH, EPOCHS, BATCHES = 6, 3, 3
STOPS = [0, 1, 3, 4, 5, 6]  # the start, the midst and the end of the epochs


class Keeping(Sampler[int]):
    """Draws when it is asked first, in the midst, and at the end."""

    def __init__(self, spec: Any) -> None:
        self.kept = make(spec)

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        order = order_of(draw(self.kept), LENGTH)
        yield from order[:3]
        yield from order_of(draw(self.kept), LENGTH)[:3]
        draw(self.kept)


def made(spec: Any, **options: Any) -> DataLoader[Any]:
    context = {"multiprocessing_context": "fork"} if options.get("worker_method") is None else {}
    context = context if options.get("num_workers") else {}
    return DataLoader(Numbers(LENGTH), 2, sampler=Keeping(spec), generator=torch.Generator(), **context, **options)


def go_on(loader: Any, stop: int | None) -> list[list[int]]:
    found: list[list[int]] = []
    while loader.epoch < EPOCHS and len(found) != stop:
        for batch in loader:
            found.append(batch.tolist())
            if len(found) == stop:
                break
    return found


def resumes(spec: Any, stops: list[int], **options: Any) -> None:
    with made(spec) as loader:
        expected = go_on(loader, None)
    for stop in stops:
        with made(spec, **options) as loader:
            assert go_on(loader, stop) == expected[:stop]
            state = loader.state_dict()
        with made(spec, **options) as loader:
            loader.load_state_dict(state)
            assert go_on(loader, None) == expected[stop:], stop


@pytest.mark.parametrize("name", LEAVES)
def test_L2_an_order_drawn_from_what_is_kept_goes_on(name: str) -> None:
    resumes(name, STOPS)


@settings(max_examples=15, deadline=None)
@given(specs())
def test_L2_an_order_drawn_from_what_is_kept_in_any_nesting_goes_on(spec: Any) -> None:
    resumes(spec, STOPS)


MIXED = ("dict of a class", [("named tuple", ["count", "views of numpy"]), "enum", "array", "other frozen", "random"])


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2},
        {"num_workers": 2, "worker_method": "thread"},
        {"num_workers": 2, "persistent_workers": True},
    ],
    ids=["forked", "threads", "persistent"],
)
def test_L2_with_workers_that_are_ahead(options: dict[str, Any]) -> None:
    resumes(MIXED, [1, 3, 5], **options)


def test_L4_a_killed_worker_changes_nothing() -> None:
    with made(MIXED) as loader:
        expected = go_on(loader, None)
    with made(MIXED, num_workers=2, persistent_workers=True) as loader:
        found = [batch.tolist() for batch in loader]
        os.kill(loader._pool.processes[0].pid, signal.SIGKILL)
        state = loader.state_dict()
        found += go_on(loader, None)
    assert found == expected
    with made(MIXED) as loader:
        loader.load_state_dict(state)
        assert go_on(loader, None) == expected[BATCHES:]


# -- parts that are put into a loader later -----------------------------------------------------------------------


def inner(loader: Any) -> None:
    loader.batch_sampler.sampler = RandomSampler(loader.dataset, generator=torch.Generator().manual_seed(1))


def generator_of_sampler(loader: Any) -> None:
    loader.sampler.generator = torch.Generator().manual_seed(1)


def generator(loader: Any) -> None:
    loader.generator = torch.Generator().manual_seed(1)


def keeping(loader: Any) -> None:
    loader.batch_sampler.sampler = Keeping(MIXED)


@pytest.mark.parametrize("change", [inner, generator_of_sampler, generator, keeping])
@pytest.mark.parametrize("stop", [0, 1, 3, 4])
def test_L2_what_is_put_into_a_loader_is_its_own(change: Any, stop: int) -> None:
    def changed() -> Any:
        torch.manual_seed(0)
        loader = DataLoader(Numbers(LENGTH), 2, shuffle=True)
        change(loader)
        return loader

    expected = go_on(changed(), None)
    loader = changed()
    assert go_on(loader, stop) == expected[:stop]
    state = loader.state_dict()
    torch.manual_seed(5)
    loader = changed()
    loader.load_state_dict(state)
    assert go_on(loader, None) == expected[stop:]


@pytest.mark.parametrize("change", [inner, keeping])
def test_L2_what_is_put_into_a_loader_between_two_epochs_is_its_own(change: Any) -> None:
    loader = DataLoader(Numbers(LENGTH), 2, shuffle=True, generator=torch.Generator())
    list(loader)
    change(loader)
    list(loader)
    state = loader.state_dict()
    expected = [batch.tolist() for batch in loader]
    loader = DataLoader(Numbers(LENGTH), 2, shuffle=True, generator=torch.Generator())
    change(loader)
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == expected


def test_loader_generator_is_drawn_from_once_it_is_there() -> None:
    loader = DataLoader(Numbers(LENGTH), 2)
    loader.generator = torch.Generator().manual_seed(1)
    before = loader.generator.get_state()
    list(loader)
    assert not torch.equal(before, loader.generator.get_state())


def part(batch: list[int], count: int) -> Any:
    return batch[:count]


def test_L3_a_collate_fn_that_is_put_into_a_loader_is_its_own() -> None:
    state = DataLoader(Numbers(LENGTH), 2, collate_fn=partial(part, count=1)).state_dict()
    loader = DataLoader(Numbers(LENGTH), 2, collate_fn=partial(part, count=2))
    with pytest.raises(StateMismatchError, match="collate"):
        loader.load_state_dict(state)
    loader.collate_fn = partial(part, count=1)
    loader.load_state_dict(state)


# -- what is large ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["subset", "weighted"])
def test_L5_a_state_within_an_epoch_does_not_read_what_torchs_samplers_hold(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = 200_000
    rng = torch.Generator()
    sampler: Any = SubsetRandomSampler(list(range(many)), rng)
    if kind == "weighted":
        sampler = WeightedRandomSampler(torch.ones(many), many, generator=rng)
    loader = DataLoader(range(many), 8, sampler=sampler, collate_fn=list)
    next(stream := iter(loader))
    loader.state_dict()
    seen: list[Any] = []
    monkeypatch.setattr(
        object_tracker, "contents_of", lambda value, *more: seen.append(value) or contents_of(value, *more)
    )
    state = loader.state_dict()
    assert any(value is sampler for value in seen)
    assert not [value for value in seen if isinstance(value, Memory) or value is getattr(sampler, "indices", ())]
    assert len(state["payload"]) < 40_000
    expected = [next(stream) for _ in range(3)]
    (other := DataLoader(range(many), 8, sampler=sampler, collate_fn=list)).load_state_dict(state)
    again = iter(other)
    assert [next(again) for _ in range(3)] == expected
