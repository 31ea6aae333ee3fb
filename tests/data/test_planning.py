"""What the plan of a window promises: each sample once, as many for each rank, alike for any ranks, and even."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchpipe.data.ranks.balance import Integers, plan, samples_of_ranks, steps_of


def _slowest(costs: Integers, planned: Integers) -> int:
    """What all steps take: of each part, what the slowest rank has."""
    return int(costs[planned].sum(axis=2).max(axis=1).sum())


def _in_turn(costs: Integers, steps: int, ranks: int) -> Integers:
    return np.arange(len(costs)).reshape(steps, ranks, -1)


def _column(*numbers: int) -> Integers:
    return np.array(numbers, np.int64)[:, None]


def test_the_example_of_the_module() -> None:
    even = _column(90, 10, 20, 80, 30, 70, 40, 60)
    assert _slowest(even, _in_turn(even, 2, 2)) == 200
    down = _column(90, 80, 70, 60, 40, 30, 20, 10)
    assert _slowest(down, _in_turn(down, 2, 2)) == 240
    planned = plan(down, 2, 2, 2)
    assert down[planned, 0].tolist() == [[[90, 10], [60, 40]], [[80, 20], [70, 30]]]
    assert _slowest(down, planned) == 200


def test_what_is_longer_than_a_row_shares_its_step_with_the_longest() -> None:
    costs = _column(1, 100, 1, 90, 2, 1, 3, 80, 2, 2, 70, 1)
    assert steps_of(costs, 3, 2).tolist() == [[0, 2, 5, 11], [1, 3, 7, 10], [4, 6, 8, 9]]
    assert _slowest(costs, plan(costs, 3, 2, 2)) == 2 + 170 + 5


@st.composite
def windows(draw: st.DrawFn) -> tuple[Integers, int, int, int, int]:
    """(costs, steps, ranks, samples of a rank, row)"""
    steps, ranks, size = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 3, 4, 6])), draw(st.integers(1, 4))
    parts, most = draw(st.integers(1, 3)), draw(st.sampled_from([0, 3, 1000, 1 << 50]))
    count = steps * ranks * size
    rows = draw(
        st.lists(st.lists(st.integers(0, most), min_size=parts, max_size=parts), min_size=count, max_size=count)
    )
    return np.array(rows, np.int64).reshape(count, parts), steps, ranks, size, draw(st.integers(1, 8))


@given(windows())
def test_each_sample_comes_once_and_no_rank_has_more(window: tuple[Integers, int, int, int, int]) -> None:
    costs, steps, ranks, size, row = window
    before = costs.copy()
    planned = plan(costs, steps, ranks, row)
    assert planned.shape == (steps, ranks, size)
    assert sorted(planned.ravel().tolist()) == list(range(len(costs)))
    assert np.array_equal(costs, before)
    assert np.array_equal(planned, plan(np.asfortranarray(costs), steps, ranks, row))
    assert np.array_equal(planned, np.sort(planned, axis=2))


@given(windows())
def test_which_samples_a_step_has_does_not_depend_on_the_ranks(window: tuple[Integers, int, int, int, int]) -> None:
    costs, steps, ranks, size, row = window
    whole = ranks * size
    sets = {
        tuple(map(tuple, np.sort(plan(costs, steps, count, row).reshape(steps, -1), axis=1).tolist()))
        for count in range(1, whole + 1)
        if whole % count == 0
    }
    assert len(sets) == 1


@given(windows())
def test_swaps_raise_no_part(window: tuple[Integers, int, int, int, int]) -> None:
    """As nothing is better than the longest sample, or than the mean."""
    costs, steps, ranks, _, row = window
    for step in steps_of(costs, steps, row):
        loads = costs[step][samples_of_ranks(costs[step], ranks)].sum(axis=1)
        assert (loads.max(axis=0) >= costs[step].max(axis=0)).all()
        assert (loads.max(axis=0) * ranks >= loads.sum(axis=0)).all()


@pytest.mark.parametrize("ranks", [8, 64])
@pytest.mark.parametrize(("power", "window", "most"), [(1, 1, 1.08), (1, 8, 1.02), (2, 8, 1.05)])
def test_long_tails_up_to_a_context_are_even(ranks: int, power: int, window: int, most: float) -> None:
    """Where nothing is planned, the slowest rank has more than half as much again as the mean."""
    lengths = np.random.default_rng(5).lognormal(6.5, 1.2, 8 * window * ranks * 8)
    costs = np.minimum(8192, np.ceil(lengths)).astype(np.int64)[:, None] ** power
    slowest = in_turn = 0
    for part in np.split(costs, 8):
        slowest += _slowest(part, plan(part, window, ranks, 8))
        in_turn += _slowest(part, _in_turn(part, window, ranks))
    mean = int(costs.sum()) / ranks
    assert in_turn > 1.5 * mean
    assert slowest < most * mean


def test_two_parts_are_even_each() -> None:
    draw = np.random.default_rng(5)
    text = np.minimum(4096, np.ceil(draw.lognormal(6, 1, 2048)))
    images = draw.integers(0, 5, 2048) * 700 * (draw.random(2048) < 0.4)
    costs = np.stack([text, images], axis=1).astype(np.int64)
    planned, mean = plan(costs, 8, 32, 8), int(costs.sum()) / 32
    assert _slowest(costs, _in_turn(costs, 8, 32)) > 1.8 * mean
    assert _slowest(costs, planned) < 1.1 * mean


@pytest.mark.parametrize("scale", [1, 1 << 34])
def test_large_batches_are_even_and_large_costs_are_swapped_alike(scale: int) -> None:
    draw = np.random.default_rng(5)
    costs = np.stack([np.ceil(draw.lognormal(6, 1, 2048)), draw.integers(0, 2048, 2048)], axis=1).astype(np.int64)
    held = samples_of_ranks(costs * scale, 16)
    assert np.array_equal(held, samples_of_ranks(costs, 16))
    assert int(costs[held].sum(axis=1).max(axis=0).sum()) < 1.02 * int(costs.sum()) / 16
