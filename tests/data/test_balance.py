"""``Balance`` as far as it needs no other process: what costs may be, what states lead to, what is refused.

Real ranks are in ``tests/services/test_balance.py``. Loaders of ranks that do not run say here what these would have.
"""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from tests.data.datasets import Numbers
from torchpipe import DataLoader
from torchpipe.data import Balance, Ranks
from torchpipe.data.ranks.batches import order_at
from torchpipe.data.ranks.windows import Share, Windows
from torchpipe.errors import StateError, StateMismatchError
from torchpipe.execution.ranks import acting_as
from torchpipe.stats import BalanceStats, CostStats

LENGTH = 70


def lengths(count: int = LENGTH) -> Any:
    return np.ceil(np.random.default_rng(3).lognormal(6, 1, count)).astype(np.int64)


def loader(batch_size: int | None = 4, *, length: int = LENGTH, **options: Any) -> DataLoader[Any]:
    options = {"balance": Balance(lengths(length), 3), "generator": torch.Generator().manual_seed(7), **options}
    ranks = Ranks(balance=options.pop("balance"), uneven=options.pop("uneven", "drop"))
    return DataLoader(Numbers(length), batch_size, shuffle=True, distributed=ranks, **options)


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def rows_of(whole: Any, asked: Any = None, epoch: int | None = None) -> list[list[int]]:
    """The indices of each step of this rank, or of those ``asked`` for, as the order has them; nothing is run."""
    position = whole._position_beside()
    order = order_at(whole, position, position.epoch if epoch is None else epoch, 0 if asked is None else asked.start)
    found = {}
    with suppress(StopIteration):
        while True:
            indices = next(order)
            found[order.number - 1] = list(indices)
    return [rows for step, rows in found.items() if asked is None or step in asked]


def steps_of(ranks: int, whole: int, state: Any = None, asked: Any = None, **options: Any) -> list[list[list[int]]]:
    """Of each step, or of those ``asked`` for, the indices of each rank."""
    found = []
    for rank in range(ranks):
        with acting_as(rank, ranks):
            of_rank = loader(whole // ranks, **options)
        if state is not None:
            of_rank.load_state_dict(state)
        found.append(rows_of(of_rank, asked))
    return list(map(list, zip(*found, strict=True)))


def sets(steps: list[list[list[int]]]) -> list[list[int]]:
    return [sorted(itertools.chain(*step)) for step in steps]


@pytest.mark.usefixtures("alone")
def test_a_loader_that_is_made_again_from_its_attributes_ends_alike() -> None:
    whole = loader(uneven="pad")
    again = DataLoader(whole.dataset, whole.batch_size, shuffle=True, distributed=whole.distributed)
    assert (again.sampler.uneven, again.sampler.balance) == ("pad", whole.sampler.balance)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="uneven='pad'"):
        DataLoader(whole.dataset, sampler=whole.sampler, distributed=Ranks(uneven="raise"))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("workers", [0, 2])
def test_L2_from_every_state_the_rest_follows(workers: int) -> None:
    options = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
    with loader(**options) as whole:
        states, epoch = [whole.state_dict()], []
        for batch in whole:
            epoch.append(batch.tolist())
            states.append(whole.state_dict())
        second = [batch.tolist() for batch in whole]
    assert sorted(itertools.chain(*epoch)) == sorted(itertools.chain(*second)) == list(range(LENGTH))
    assert epoch != second
    for number, state in enumerate(states):
        again = loader()
        again.load_state_dict(state)
        assert [batch.tolist() for batch in again] == epoch[number:]
        assert [batch.tolist() for batch in again] == second


@pytest.mark.usefixtures("alone")
def test_L3_any_ranks_have_the_same_samples_in_each_step() -> None:
    """From states of one rank, within windows and between them."""
    whole = loader(12)
    states, epoch = [], []
    for batch in whole:
        epoch.append(sorted(batch.tolist()))
        states.append(whole.state_dict())
    for ranks in (1, 2, 3, 4, 6, 12):
        for number, state in enumerate(states[:4], 1):
            steps = steps_of(ranks, 12, state, range(number, 5))
            assert sets(steps) == epoch[number:5]
            assert all(len(batch) == 12 // ranks for step in steps for batch in step)
            assert sets(steps_of(ranks, 12, state, range(5))) == epoch[:5]


@pytest.mark.usefixtures("alone")
def test_between_windows_another_number_of_samples_goes_on_and_within_one_it_is_refused() -> None:
    whole = loader(8)
    had: list[int] = []
    for number, batch in enumerate(whole, 1):
        had += batch.tolist()
        other = loader(4)
        if number % 3 and number < 8:
            with pytest.raises(StateMismatchError, match=rf"{number % 3} steps into a window of \d, .* is 8, or load"):
                other.load_state_dict(whole.state_dict())
        else:
            other.load_state_dict(whole.state_dict())
            rest = [index for batch in other for index in batch.tolist()]
            assert sorted(had + rest) == list(range(LENGTH))


@pytest.mark.usefixtures("alone")
def test_fewer_samples_than_a_step_has() -> None:
    whole = loader(100)
    stream = iter(whole)
    batch = next(stream)
    assert sorted(batch.tolist()) == list(range(LENGTH))
    again = loader(100)
    again.load_state_dict(whole.state_dict())
    assert list(again) == list(stream) == []
    assert torch.equal(next(iter(again)), next(iter(whole)))


@pytest.mark.usefixtures("alone")
def test_rows_and_skips_are_what_the_loop_has() -> None:
    whole = loader()
    rows = rows_of(whole)
    assert rows_of(whole, range(7, 9)) == rows[7:9]
    stream = iter(whole)
    next(stream)
    assert whole.skip(4) == 4
    assert [batch.tolist() for batch in stream] == rows[5:]
    assert rows_of(whole, range(2, 5), epoch=0) == rows[2:5]
    sampler: Any = loader().sampler
    sampler.run_seed = 0
    assert len(list(sampler)) == len(sampler) == LENGTH


@pytest.mark.usefixtures("alone")
def test_without_batches_too() -> None:
    with loader(None) as whole:
        stream = iter(whole)
        first = [int(next(stream)) for _ in range(5)]
        again = loader(None)
        again.load_state_dict(whole.state_dict())
        rest = list(map(int, again))
        assert rest == list(map(int, stream))
    assert sorted(first + rest) == list(range(LENGTH))


@given(
    st.integers(0, 60),
    st.integers(1, 4),
    st.sampled_from([1, 2, 3, 6]),
    st.booleans(),
    st.sampled_from(["drop", "pad"]),
    st.integers(1, 4),
    st.integers(0, 8),
)
def test_ends_are_those_without_a_plan(
    length: int, size: int, ranks: int, drop_last: bool, uneven: Any, window: int, stop: int
) -> None:
    """As many batches of as many samples, and each sample once; also from a state within the epoch."""
    planned, plain = (
        steps_of(ranks, size * ranks, drop_last=drop_last, uneven=uneven, length=length, balance=balance)
        for balance in (Balance(lengths(length), window), None)
    )
    assert [[len(batch) for batch in step] for step in planned] == [[len(batch) for batch in step] for step in plain]
    assert set(itertools.chain(*sets(planned))) == set(itertools.chain(*sets(plain)))


def test_arrays_columns_and_functions_are_the_same_costs() -> None:
    numbers = [5, 0, 1 << 40, 7]
    wanted = Balance(numbers).costs(4)
    assert wanted.table.tolist() == [[5], [0], [1 << 40], [7]]
    for same in (
        tuple(numbers),
        np.array(numbers),
        np.array(numbers, np.uint64),
        torch.tensor(numbers),
        numbers.__getitem__,
        lambda index: np.int64(numbers[index]),
        lambda index: torch.tensor(numbers[index]),
        {"cost": numbers},
    ):
        assert Balance(same).costs(4).digest == wanted.digest
    assert Balance({"length": numbers}).costs(4).digest != wanted.digest
    assert Balance({"a": numbers, "b": range(4)}).costs(4).table.tolist() == [[5, 0], [0, 1], [1 << 40, 2], [7, 3]]


def test_an_array_may_change_afterwards() -> None:
    given_ = np.arange(4)
    balance = Balance(given_)
    given_[:] = 9
    assert balance.costs(4).table.ravel().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("cost", "error", "told"),
    [
        ([1.5, 2, 3], TypeError, "type float64"),
        ([1, float("nan"), 3], TypeError, "float"),
        (np.array([True, False, True]), TypeError, "bool"),
        ([1, None, 3], TypeError, "object"),
        ([1, 1 << 70, 3], TypeError, "object"),
        (["1", "2", "3"], TypeError, "type <U1"),
        ([1, -2, 3], ValueError, "sample 1 is -2"),
        (np.array([1, 1 << 63, 3], np.uint64), ValueError, "sample 1 is 9223372036854775808"),
        ([[1], [2], [3]], ValueError, r"shape \(3, 1\)"),
        ([1, 2], ValueError, "has 2 numbers, and the dataset 3 samples"),
        (np.ma.array([1, 2, 3], mask=[0, 1, 0]), TypeError, "masked"),
        (7, TypeError, "known before samples are read"),
        (iter([1, 2, 3]), TypeError, "known before samples are read"),
        ({}, ValueError, "a name for each part"),
        ({1: [1, 2, 3]}, ValueError, "a name for each part"),
        (lambda index: index / 2, TypeError, "of sample 0 is 0.0 of type float"),
        (lambda index: index > 1, TypeError, "of sample 0 is False of type bool"),
        (lambda index: 1 - index, ValueError, "of sample 2 is -1"),
        (lambda index: float("nan") if index else 1, TypeError, "of sample 1 is nan"),
        (lambda index: {"text": 1}, TypeError, "give a dict of functions"),
        (lambda index: 1 << 63, ValueError, "of sample 0 is"),
        (lambda index: next(iter(())), RuntimeError, "raised StopIteration for sample 0"),
        ([1 << 62, 1, 1], ValueError, "fit into 64 bits"),
    ],
)
def test_L7_costs_that_are_no_whole_numbers_are_refused_when_the_loader_is_made(
    cost: Any, error: type[Exception], told: str
) -> None:
    with acting_as(0, 2), pytest.raises(error, match=told):
        loader(length=3, balance=Balance(cost))


def test_what_a_cost_raises_names_the_sample() -> None:
    with acting_as(0, 2), pytest.raises(KeyError) as raised:
        loader(length=3, balance=Balance({0: 5}.__getitem__))
    assert raised.value.__notes__ == ["torchpipe: raised by the cost 'cost' of sample 1"]


class Counting:
    """Says something else whenever it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, index: int) -> int:
        self.asked += 1
        return self.asked * self.asked % 97


@pytest.mark.usefixtures("alone")
def test_a_cost_that_counts_is_asked_once_and_told_where_it_has_changed() -> None:
    cost = Counting()
    whole = loader(balance=Balance(cost, 3))
    stream = iter(whole)
    had = [next(stream).tolist() for _ in range(5)]
    state = whole.state_dict()
    rest = [batch.tolist() for batch in stream]
    assert cost.asked == LENGTH
    same = loader(balance=Balance(Counting(), 3))
    same.load_state_dict(state)
    assert [batch.tolist() for batch in same] == rest
    assert sorted(itertools.chain(*had, *rest)) == list(range(LENGTH))
    with pytest.raises(StateMismatchError, match="the costs of samples '.*', here '.*'.* costs that do not change"):
        loader(balance=Balance(cost, 3)).load_state_dict(state)


@pytest.mark.usefixtures("alone")
def test_L7_states_of_other_windows_are_refused() -> None:
    def state_of(**options: Any) -> Any:
        whole = loader(**options)
        stream = iter(whole)
        next(stream)
        return whole.state_dict()

    kinds: dict[str, Any] = {
        "plain": None,
        "planned": Balance(lengths(), 3),
        "window": Balance(lengths(), 4),
        "row": Balance(lengths(), 3, row=2),
        "costs": Balance(lengths() + 1, 3),
        "parts": Balance({"length": lengths()}, 3),
        "shadow": Balance(lengths(), 3, shadow=True),
    }
    for saved, by in kinds.items():
        state = state_of(balance=by)
        for here, balance in kinds.items():
            other = loader(balance=balance)
            if saved == here or {saved, here} == {"plain", "shadow"} or (saved == "row") > (here != "planned"):
                other.load_state_dict(state)
            else:
                with pytest.raises(StateMismatchError, match="balance="):
                    other.load_state_dict(state)
    assert loader().state_dict()["payload"]  # nothing was left behind


@pytest.mark.usefixtures("alone")
def test_the_row_of_a_run_stays_with_it() -> None:
    """Where ``row`` is not given it is the batch size that the run began with, in the next epoch too."""
    whole = loader(12)
    next(iter(whole))
    state = whole.state_dict()
    epochs = [[sorted(row) for row in rows_of(whole, epoch=epoch)][:5] for epoch in (0, 1)]
    with acting_as(0, 1):
        small = loader(12)
    small.load_state_dict(state)
    assert [sorted(row) for row in rows_of(small, epoch=1)][:5] == epochs[1]
    assert sets(steps_of(12, 12, state, range(1, 5))) == epochs[0][1:]


@pytest.mark.usefixtures("alone")
def test_L8_damaged_positions_are_refused() -> None:
    from torchpipe.data.ranks.batches import check_ranked

    whole = loader()
    stream = iter(whole)
    next(stream)
    order: Any = whole._position_now().order
    for change in ({"begin": 8}, {"done": 0}, {"done": -1}, {"step": 0}, {"has": "3"}, {"begin": LENGTH + 1}):
        damaged = order | {"balance": order["balance"] | change}
        with pytest.raises(StateError):
            check_ranked(whole.sampler, damaged)  # type: ignore[arg-type]
    with pytest.raises(StateError, match="its windows are"):
        check_ranked(whole.sampler, order | {"balance": [1]})  # type: ignore[arg-type]
    check_ranked(whole.sampler, order)  # type: ignore[arg-type]


@pytest.mark.usefixtures("alone")
def test_a_dataset_that_has_grown_is_told() -> None:
    whole = loader()
    whole.dataset.length += 1  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="has 71 samples, and had 70 when the loader was made"):
        iter(whole)


@pytest.mark.usefixtures("alone")
def test_L7_arguments_that_contradict() -> None:
    with pytest.raises(TypeError, match=r"must be a torchpipe\.data\.Balance"):
        loader(length=3, balance=[1, 2, 3])
    for wrong in ({"window": 0}, {"row": 0}, {"window": 1.5}, {"shadow": 1}):
        with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
            Balance([1, 2, 3], **wrong)  # type: ignore[arg-type]


@pytest.mark.usefixtures("alone")
def test_copies_plan_alike() -> None:
    whole = loader()
    copies = [copy.deepcopy(whole), pickle.loads(pickle.dumps(whole)), copy.copy(whole)]
    rows = rows_of(whole)
    for other in copies:
        assert [batch.tolist() for batch in other] == rows


@pytest.mark.usefixtures("alone")
def test_figures_of_a_plan() -> None:
    whole = loader(balance=Balance({"a": lengths(), "b": range(LENGTH)}, 3))
    assert whole.stats().balance is None
    list(whole)
    stats = whole.stats()
    assert stats.balance is not None
    assert (stats.balance.steps, stats.balance.slowest) == (17, 1.0)
    assert [part.name for part in stats.balance.costs] == ["a", "b"]
    assert isinstance(whole._windows, Windows)
    assert BalanceStats(steps=1, shadow=True, slowest_without=1, slowest=1, costs=(CostStats(name="a", ranks=(1,)),))


@pytest.mark.usefixtures("alone")
def test_L4_a_state_from_between_epochs_keeps_the_row_of_its_run() -> None:
    """After the loop has ended, and after ``set_epoch``: also where another batch size began the run."""
    small = loader(1)
    stream = iter(small)
    for _ in range(36):
        next(stream)
    run = loader(12)
    run.load_state_dict(small.state_dict())
    list(run)
    state = run.state_dict()
    resumed, asked = loader(12), loader(12)
    resumed.load_state_dict(state)
    asked.load_state_dict(small.state_dict())
    asked.set_epoch(1)
    wanted = [batch.tolist() for batch in run]
    assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in asked] == wanted
    for other in (Balance(lengths() + 1, 3), Balance(lengths(), 4), Balance(lengths(), 3, row=5), None):
        with pytest.raises(StateMismatchError, match="balance="):
            loader(12, balance=other).load_state_dict(state)


@pytest.mark.usefixtures("alone")
def test_what_a_state_brought_goes_with_the_next_one() -> None:
    fresh = rows_of(loader(12))
    of_other_row, whole = loader(1).state_dict(), loader(12)
    for state in ({}, loader(12).state_dict()):
        whole.load_state_dict(of_other_row)
        assert rows_of(whole) != fresh
        whole.load_state_dict(state)
        assert rows_of(whole) == fresh


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("size", "row"), [(100, None), (4, 2 * LENGTH)])
def test_steps_and_rows_of_more_samples_than_there_are(size: int, row: int | None) -> None:
    options = {"balance": Balance(lengths(), 3, row=row)}
    whole = loader(size, **options)
    states = [whole.state_dict(), *(whole.state_dict() for _ in whole), whole.state_dict()]
    for state in states:
        loader(size, **options).load_state_dict(state)


def test_figures_within_a_window_are_over_the_mean_of_what_they_count() -> None:
    costs = Balance([1] * 8 + [100] + [1] * 7, 4).costs(16)
    share = Share(length=16, size=2, rank=0, ranks=2, drop_last=False, uneven="drop")
    windows = Windows(share, costs, 4, 2, lambda: np.arange(16), shadow=False)
    for step in range(4):
        windows.positions(step)
        stats = windows.stats()
        assert min(stats.slowest, stats.slowest_without) >= 1.0
        assert stats.slowest_without == pytest.approx([1, 1, 1.8918918, 1.8608695][step])


@pytest.mark.usefixtures("alone")
def test_sums_of_an_epoch_may_be_larger_than_64_bits() -> None:
    whole = loader(balance=Balance([10**17] * 200, 8), length=200)
    list(whole)
    balance = whole.stats().balance
    assert balance is not None
    assert (balance.slowest, balance.costs[0].ranks) == (1.0, (200 * 10**17,))


class Endless:
    """A column that never says that an index is too large."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        assert index < 5
        return index


def test_a_column_is_read_up_to_its_length() -> None:
    assert Balance(Endless()).costs(5).table.ravel().tolist() == list(range(5))


class Labelled(Endless):
    """As a table's column that was sorted: its ``[]`` goes by labels, its array by places."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.arange(5)[::-1]


def test_a_column_that_is_an_array_is_read_as_one() -> None:
    assert Balance(Labelled()).costs(5).table.ravel().tolist() == [4, 3, 2, 1, 0]


@pytest.mark.usefixtures("alone")
def test_a_shadow_changes_nothing_where_costs_draw_and_datasets_grow() -> None:
    def epochs(balance: Balance | None) -> list[Any]:
        torch.manual_seed(0)
        whole = loader(balance=balance, generator=None)
        first = [batch.tolist() for batch in whole]
        whole.dataset.length += 1  # type: ignore[attr-defined]
        return [first, [batch.tolist() for batch in whole]]

    assert epochs(Balance(lambda _: int(torch.randint(1000, ())), 3, shadow=True)) == epochs(None)
