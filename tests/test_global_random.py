"""The global random states of a shard: apart from the user's, equal for equal keys, saved and restored exactly."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from torchpipe.errors import StateError
from torchpipe.randomness.global_random import BatchRandom, GlobalRandom, RandomStates
from torchpipe.randomness.seeds import BatchSeeds
from torchpipe.state import decode, encode

DRAWS: dict[str, Callable[[], Any]] = {
    "random.random": random.random,
    "random.gauss": lambda: random.gauss(0, 1),  # made in pairs: the second is kept
    "random.shuffle": lambda: random.sample(range(100), 5),
    "np.random.rand": lambda: float(np.random.rand()),
    "np.random.randn": lambda: float(np.random.randn()),  # made in pairs: the second is kept
    "np.random.permutation": lambda: np.random.permutation(10).tolist(),
    "np.random.randint": lambda: int(np.random.randint(1000)),
    "torch.rand": lambda: float(torch.rand(())),
    "torch.randn": lambda: torch.randn(20).tolist(),
    "torch.randperm": lambda: torch.randperm(10).tolist(),
}


def draw_all() -> list[Any]:
    return [draw() for draw in DRAWS.values()]


def fingerprint_of_the_process() -> list[Any]:
    """Everything there is of the process's own states."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # type: ignore[misc]
    return [
        random.getstate(),
        [name, keys.tolist(), position, has_gauss, gauss if has_gauss else None],
        torch.get_rng_state().tolist(),
    ]


def draws_within(states: GlobalRandom, draw: Callable[[], Any], count: int = 1) -> list[Any]:
    with states:
        return [draw() for _ in range(count)]


@pytest.mark.parametrize("before", DRAWS)
def test_the_users_states_are_restored_exactly(before: str) -> None:
    for count in range(4):
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)
        for _ in range(count):
            DRAWS[before]()
        expected = fingerprint_of_the_process()
        states = GlobalRandom((1, 2, 3))
        for _ in range(3):
            with states:
                draw_all()
        with pytest.raises(RuntimeError, match="leave"), states:
            draw_all()
            raise RuntimeError("leave")
        assert fingerprint_of_the_process() == expected
        after = draw_all()
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)
        for _ in range(count):
            DRAWS[before]()
        assert draw_all() == after


def test_the_users_generator_object_stays_in_place() -> None:
    with GlobalRandom((1,)):
        pass  # from then on it is one whose state costs little to keep
    mine = np.random.mtrand._rand._bit_generator  # type: ignore[attr-defined]
    with GlobalRandom((1,)):
        assert np.random.mtrand._rand._bit_generator is not mine  # type: ignore[attr-defined]
    assert np.random.mtrand._rand._bit_generator is mine  # type: ignore[attr-defined]


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_equal_keys_give_equal_draws_and_others_do_not(draw: Callable[[], Any]) -> None:
    one, same = GlobalRandom((1, 2, 3)), GlobalRandom((1, 2, 3))
    expected = draws_within(one, draw, 10)
    draw_all()  # the process's own states do not matter
    assert draws_within(same, draw, 10) == expected
    for key in ((1, 2, 4), (1, 3, 3), (2, 2, 3), (1, 2), (3, 2, 1)):
        assert draws_within(GlobalRandom(key), draw, 10) != expected


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_leaving_and_entering_between_draws_changes_nothing(draw: Callable[[], Any]) -> None:
    expected = draws_within(GlobalRandom((7,)), draw, 9)
    pausing, other = GlobalRandom((7,)), GlobalRandom((8,))
    got = []
    for _ in range(9):
        got += draws_within(pausing, draw)
        draws_within(other, draw)
        draw()
    assert got == expected


def test_nothing_drawn_is_no_state() -> None:
    states = GlobalRandom((1,))
    assert states.state_dict() is None
    with states:
        assert states.state_dict() is None
    assert states.state_dict() is None
    for draw in DRAWS.values():
        states = GlobalRandom((1,))
        draws_within(states, draw)
        assert states.state_dict() is not None


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("inside", [False, True])
def test_a_saved_state_goes_on_exactly(draw: Callable[[], Any], inside: bool) -> None:
    expected = draws_within(GlobalRandom((7,)), draw, 9)
    for position in range(9):
        saving = GlobalRandom((7,))
        with saving:
            for _ in range(position):
                draw()
            within = encode(saving.state_dict())
        assert encode(saving.state_dict()) == within
        loading = GlobalRandom((7,))
        draws_within(loading, draw, 3)
        if inside:
            with loading:
                loading.load_state_dict(decode(within))
                assert [draw() for _ in range(9 - position)] == expected[position:]
        else:
            loading.load_state_dict(decode(within))
            assert encode(loading.state_dict()) == within
            assert draws_within(loading, draw, 9 - position) == expected[position:]


def test_a_state_is_an_independent_copy() -> None:
    states = GlobalRandom((7,))
    with states:
        draw_all()
        state = states.state_dict()
        data = encode(state)
        expected = draw_all()
        draw_all()
    assert encode(state) == data
    for _ in range(2):
        states.load_state_dict(state)
        with states:
            assert draw_all() == expected


def test_what_a_function_seeds_stays_in_its_shard() -> None:
    before = fingerprint_of_the_process()
    states = GlobalRandom((1,))
    with states:
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        expected = draw_all()
        np.random.seed(3)
        random.seed(3)
        torch.manual_seed(3)
    assert fingerprint_of_the_process() == before
    with states:
        assert draw_all() == expected


def test_another_kind_of_numpy_generator_cannot_be_saved_and_does_not_leak() -> None:
    before = fingerprint_of_the_process()
    states = GlobalRandom((1,))
    with states:
        np.random.set_bit_generator(np.random.PCG64(3))  # type: ignore[attr-defined]
        first = np.random.rand()
        with pytest.raises(
            StateError, match="bit generator is PCG64.* only .* MT19937 .* generator of your own instead"
        ):
            states.state_dict()
    assert fingerprint_of_the_process() == before
    with states:
        assert np.random.rand() != first  # it goes on


def test_the_users_own_kind_of_numpy_generator_is_put_back() -> None:
    mine = np.random.mtrand._rand._bit_generator  # type: ignore[attr-defined]
    other = np.random.PCG64(3)
    try:
        np.random.set_bit_generator(other)  # type: ignore[attr-defined]
        np.random.randn()
        with GlobalRandom((1,)):
            draw_all()
        second = np.random.randn()
        assert np.random.mtrand._rand._bit_generator is other  # type: ignore[attr-defined]
        np.random.set_bit_generator(np.random.PCG64(3))  # type: ignore[attr-defined]
        np.random.randn()
        assert np.random.randn() == second
    finally:
        np.random.set_bit_generator(mine)  # type: ignore[attr-defined]


def test_the_states_that_are_in_place_can_be_copied() -> None:
    np.random.randn()
    random.gauss(0, 1)
    copied = GlobalRandom.at(RandomStates.now())
    before = fingerprint_of_the_process()
    with copied:
        expected = draw_all()
    assert fingerprint_of_the_process() == before
    assert draw_all() == expected


def test_a_batchs_states_do_not_depend_on_which_batches_came_before() -> None:
    in_turn = BatchSeeds()
    expected = {(epoch, batch): in_turn.of(5, epoch, batch) for epoch in range(2) for batch in range(40)}
    assert len(set(expected.values())) == 80
    drawn = random.Random(0)
    for _ in range(20):
        other = BatchSeeds()
        for key in drawn.choices(list(expected), k=30):
            assert other.of(5, *key) == expected[key]
        first = drawn.randrange(20)
        for batch in range(first, 40, drawn.choice((1, 2, 3))):
            assert other.of(5, 1, batch) == expected[1, batch]
    assert BatchSeeds().of(6, 0, 0) != expected[0, 0]
    assert BatchSeeds().of(5, 0, 2**64) != expected[0, 0]  # no number is too large


def test_a_batchs_states_stay_what_they_are() -> None:
    """They are part of what a saved state continues: equal in every version, on every platform."""
    states = BatchRandom()
    drawn = states.within(1, 2, 3, lambda: [random.random(), float(np.random.rand()), float(torch.rand(()))])
    assert drawn == [0.8105394638598445, 0.345302812463708, 0.30599331855773926]
