"""``DataLoader.rows`` and ``item_at``: any sampler is asked beside the loop, and only what is asked for is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.data.datasets import LENGTH, Augmented, Lines, Numbers, StatefulNumbers
from tests.data.test_balance import alone, rows_of  # noqa: F401
from tests.data.test_balance import loader as balanced
from tests.data.test_fetch_samples import AnyBatches
from tests.data.test_L2_exact_resume import NAMES, seeded_loader
from tests.exact import exact
from torchpipe import DataLoader
from torchpipe.errors import StateError
from torchpipe.stats import LoaderStats

SAMPLED = [name for name in NAMES if name not in ("iterable", "rollover, stateful")]


def indices(batch: Any) -> list[int]:
    return batch[0].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("epoch", [0, 1])
def test_every_step_from_every_position_and_nothing_moves(name: str, epoch: int) -> None:
    make = seeded_loader(name)
    whole = make()
    runs = [list(whole) for _ in range(epoch + 1)]
    expected = [(step, indices(batch)) for step, batch in enumerate(runs[epoch])]
    for stop in (0, 1, 3, len(expected)):
        loader = make()
        for _ in range(epoch):
            list(loader)
        stream = iter(loader)
        taken = [next(stream) for _ in range(stop)]
        state = exact(loader.state_dict())
        present = exact(torch.get_rng_state())
        backwards = "stateful" not in name or name == "stateful dataset"
        if backwards:
            assert [tuple(row) for row in loader.rows()] == expected
        elif stop:
            with pytest.raises(StateError, match="state of its own"):
                loader.rows([0])
        assert [tuple(row) for row in loader.rows(range(stop, stop + 2))] == expected[stop : stop + 2]
        if name != "stateful dataset":
            for step in {0, stop, len(expected) - 1} if backwards else {*range(stop, len(expected))}:
                if step < len(expected):
                    assert exact(loader.item_at(step)) == exact(runs[epoch][step])
        assert exact(loader.state_dict()) == state
        assert exact(torch.get_rng_state()) == present
        assert [exact(batch) for batch in [*taken, *stream]] == [exact(batch) for batch in runs[epoch]]


def test_before_the_first_epoch_the_default_generator_is_asked_and_stays() -> None:
    torch.manual_seed(3)
    loader: DataLoader[Any] = DataLoader(Augmented(LENGTH), 4, shuffle=True)
    found, first = [row.rows for row in loader.rows()], loader.item_at(0)
    batches = list(loader)
    assert found == [indices(batch) for batch in batches]
    assert exact(first) == exact(batches[0])


def test_nothing_is_read_for_rows_and_one_batch_for_a_batch() -> None:
    read: list[int] = []

    class Noting(Numbers):
        def __getitem__(self, index: int) -> int:
            read.append(index)  # outside of itself, since a copy of it is asked
            return index

    loader: DataLoader[Any] = DataLoader(Noting(1000), 10, shuffle=True)
    rows = next(loader.rows([70])).rows
    assert read == []
    assert loader.item_at(70).tolist() == rows
    assert read == rows


def test_samples_that_are_no_batches_and_states_that_are_loaded() -> None:
    loader: DataLoader[Any] = DataLoader(Numbers(9), batch_size=None, shuffle=True)
    stream = iter(loader)
    taken = [next(stream), next(stream)]
    state = loader.state_dict()
    taken += list(stream)
    other: DataLoader[Any] = DataLoader(Numbers(9), batch_size=None, shuffle=True)
    other.load_state_dict(state)
    assert [row.rows for row in other.rows()] == [[index] for index in taken]
    assert other.item_at(1) == taken[1]
    assert list(other) == taken[2:]


def test_what_cannot_be_told_is_refused() -> None:
    loader: DataLoader[Any] = DataLoader(Lines(9), 2)
    with pytest.raises(TypeError, match="iterable"):
        loader.rows([1])
    stateful: DataLoader[Any] = DataLoader(StatefulNumbers(9), 2)
    with pytest.raises(TypeError, match="depends on those before"):
        stateful.item_at(1)
    plain: DataLoader[Any] = DataLoader(Numbers(9), 2)
    with pytest.raises(ValueError, match="keep"):
        plain.rows(keep=["id"])
    with pytest.raises(StateError, match="epoch 4"):
        plain.rows(epoch=4)
    with pytest.raises(IndexError, match="no step 5"):
        plain.item_at(5)
    within = seeded_loader("rollover, stateful")()
    with pytest.raises(StateError, match="within another one"):
        within.rows()
    uncopied: DataLoader[Any] = DataLoader(Numbers(9), 2, sampler=Uncopied())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cannot be copied"):
        uncopied.rows()


class Uncopied:
    def __iter__(self) -> Any:
        return iter(range(9))

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("there is but one")


@pytest.mark.parametrize("asked", [range(2), [4]], ids=str)
def test_steps_before_a_state_are_refused_where_the_sampler_gives_other_batches_now(asked: Any) -> None:
    def weighted(weights: torch.Tensor) -> DataLoader[Any]:
        sampler = torch.utils.data.WeightedRandomSampler(weights, LENGTH, generator=torch.Generator().manual_seed(2))
        return DataLoader(Numbers(LENGTH), 2, sampler=sampler)

    weights = torch.ones(LENGTH)
    run = weighted(weights)
    stream = iter(run)
    taken = [next(stream).tolist() for _ in range(3)]
    state = run.state_dict()

    same = weighted(weights)
    same.load_state_dict(state)
    assert [row.rows for row in same.rows(range(3))] == taken
    assert [same.item_at(step).tolist() for step in range(3)] == taken

    weights = weights.clone()
    weights[3] = 9
    changed = weighted(weights)
    changed.load_state_dict(state)
    for look in (lambda: list(changed.rows(asked)), lambda: changed.item_at(asked[0])):
        with pytest.raises(StateError, match="does not give the batches again"):
            look()


@pytest.mark.usefixtures("alone")
def test_of_a_balanced_loader_as_the_loop_has_them() -> None:
    whole = balanced()
    rows = [row.rows for row in whole.rows()]
    assert rows == rows_of(whole)
    assert [row.rows for row in whole.rows(range(7, 9))] == rows[7:9]
    stream = iter(whole)
    next(stream)
    assert whole.skip(4) == 4
    assert [batch.tolist() for batch in stream] == rows[5:]
    assert [row.rows for row in whole.rows(range(2, 5), epoch=0)] == rows[2:5]
    assert whole.item_at(7, epoch=0).tolist() == rows[7]
    assert "slowest rank over the mean, by costs, in" in str(whole.stats())
    assert LoaderStats.from_json(whole.stats().to_json()) == whole.stats()


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_whose_samples_were_dealt_one_by_one(workers: int) -> None:
    with DataLoader(Numbers(40), 6, fetch="samples", num_workers=workers) as loader:
        batches = [exact(batch) for batch in loader]
        loader.set_epoch(0)
        assert exact(loader.item_at(4)) == batches[4]


@pytest.mark.parametrize("make", [iter, set, dict.fromkeys, lambda of: map(int, of)])
def test_batches_of_indices_that_are_any_iterable(make: Any) -> None:
    loader = DataLoader(Numbers(40), batch_sampler=AnyBatches(make), fetch="samples", collate_fn=list)
    assert loader.item_at(3) == list(loader)[3]
