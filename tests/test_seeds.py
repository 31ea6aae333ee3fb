"""Random streams: golden values that must never change, and streams that must differ."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.warm import Warm
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.randomness.seeds import (
    IndexStream,
    ItemStreams,
    SeedGenerator,
    check_seed,
    derive_seed,
    fresh_seed,
    next_fresh_seed,
)

KEYS = st.lists(st.integers(0, 2**64), min_size=1, max_size=5).map(tuple)


def test_L1_golden_values_of_derive_seed() -> None:
    assert [derive_seed(*key) for key in [(0,), (0, 0), (1, 2, 3), (2**70, 5)]] == [
        15793235383387715774,
        8668861027912758289,
        10928566898365450891,
        14274037627733791446,
    ]


def test_L1_golden_values_of_index_stream() -> None:
    stream = IndexStream((1, 2, 3))
    assert [stream.index(1000) for _ in range(10)] == [181, 355, 49, 267, 180, 641, 901, 294, 246, 294]
    stream.load_state_dict({"key": [7], "draws": 255})  # across the border of two blocks
    assert [stream.index(10**6) for _ in range(4)] == [6033, 59130, 679876, 461260]
    assert stream.state_dict() == {"key": [7], "draws": 259}


def test_L1_golden_values_of_item_streams() -> None:
    streams = ItemStreams((1, 2, 3))
    draws = [streams.generator(index).integers(10**6, size=2).tolist() for index in (0, 1, 10**9)]
    assert draws == [[794060, 195315], [702508, 634750], [53992, 49309]]


def test_L1_golden_values_of_seed_generator() -> None:
    seeds = SeedGenerator(5)
    assert (seeds.generate_shared_seed(), seeds.generate_seed()) == (7017849772739745776, 7914777250463872585)
    assert [seeds.spawn(worker).generate_seed() for worker in (0, 1)] == [7307745136061655393, 11222797838502773112]
    assert seeds.spawn(0).generate_shared_seed() == 18410635756183049003


def test_L1_the_order_of_a_shuffle_is_for_ever() -> None:
    node = IterableWrapper(range(10)).shuffle(buffer_size=4)
    assert list(iterate(node, seed=0)) == GOLDEN_ORDER
    assert list(iterate(node, seed=0, epoch=1)) != GOLDEN_ORDER
    assert list(iterate(node, seed=1)) != GOLDEN_ORDER


GOLDEN_ORDER = [0, 2, 5, 6, 7, 3, 9, 8, 4, 1]


def test_L1_streams_are_the_same_in_another_process(warm: Warm, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from torchpipe.randomness.seeds import IndexStream; "
        "s = IndexStream((3, 1)); print([s.index(99) for _ in range(9)])"
    )
    done = warm.run([str(script)], cwd=tmp_path)
    stream = IndexStream((3, 1))
    assert (done.returncode, done.stdout) == (0, f"{[stream.index(99) for _ in range(9)]}\n"), done.stderr


@given(KEYS, st.integers(0, 2000), st.integers(0, 300))
def test_a_position_in_a_stream_is_two_integers(key: tuple[int, ...], before: int, after: int) -> None:
    stream = IndexStream(key)
    for _ in range(before):
        stream.index(1000)
    other = IndexStream((0,))
    other.load_state_dict(stream.state_dict())
    assert [other.index(1000) for _ in range(after)] == [stream.index(1000) for _ in range(after)]


@given(KEYS, st.integers(1, 2**40))
def test_indices_lie_in_range_and_cost_one_draw_each(key: tuple[int, ...], n: int) -> None:
    stream = IndexStream(key)
    assert all(0 <= stream.index(n) < n for _ in range(20))
    assert stream.draws == 20


def test_indices_are_uniform() -> None:
    stream = IndexStream((11,))
    counts = np.bincount([stream.index(7) for _ in range(70_000)], minlength=7)
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 22.5  # chi-squared, 6 degrees of freedom, 0.1 %


@given(st.lists(KEYS, min_size=2, max_size=8, unique=True))
def test_different_keys_give_different_streams(keys: list[tuple[int, ...]]) -> None:
    assert len({derive_seed(*key) for key in keys}) == len(keys)
    assert len({tuple(IndexStream(key).index(2**60) for _ in range(2)) for key in keys}) == len(keys)
    assert len({ItemStreams(key).generator(0).random() for key in keys}) == len(keys)


def test_items_and_indices_of_one_key_are_unrelated() -> None:
    stream = IndexStream((1,))
    words = {stream.index(2**64) for _ in range(1000)}
    assert not words & set(ItemStreams((1,)).generator(0).bit_generator.random_raw(1000).tolist())


def test_an_items_stream_depends_on_its_index_alone() -> None:
    one, other = ItemStreams((4,)), ItemStreams((4,))
    one.generator(0).random(10_000)
    assert one.generator(1).random() == other.generator(1).random() != other.generator(2).random()


def test_spawned_generators_share_one_stream_and_have_one_each() -> None:
    seeds = SeedGenerator(9)
    workers = [seeds.spawn(worker) for worker in range(3)]
    shared = [[worker.generate_shared_seed() for _ in range(3)] for worker in workers]
    assert shared[0] == shared[1] == shared[2]
    own = [seed for worker in workers for seed in (worker.generate_seed(), worker.generate_seed())]
    assert len(set(own)) == 6
    assert seeds.generate_seed() not in own


def test_spawning_goes_on_from_the_parents_shared_position() -> None:
    seeds = SeedGenerator(9)
    expected = [SeedGenerator(9).generate_shared_seed(), None]
    assert seeds.generate_shared_seed() == expected[0]
    child = seeds.spawn(4)
    assert child.generate_shared_seed() == seeds.generate_shared_seed()
    assert seeds.spawn(4).generate_seed() == child.generate_seed()  # a function of seed and worker


def test_spawning_in_place() -> None:
    seeds = SeedGenerator(9)
    seeds.generate_seed()
    assert seeds.spawn(2, inplace=True) is seeds
    assert seeds.generate_seed() == SeedGenerator(9).spawn(2).generate_seed()


def test_seeding_starts_anew() -> None:
    seeds = SeedGenerator(1)
    first = seeds.generate_seed(), seeds.generate_shared_seed()
    seeds.seed(1)
    assert (seeds.generate_seed(), seeds.generate_shared_seed()) == first
    seeds.seed(2)
    assert (seeds.generate_seed(), seeds.generate_shared_seed()) != first
    assert SeedGenerator().generate_seed() != SeedGenerator().generate_seed()


def test_a_fresh_seed_is_one_draw_from_torchs_default_generator() -> None:
    np.random.seed(1)
    random.seed(1)
    before = np.random.get_state()[1].tolist(), random.getstate()
    torch.manual_seed(3)
    expected = [int(torch.empty((), dtype=torch.int64).random_()) for _ in range(2)]
    torch.manual_seed(3)
    assert [next_fresh_seed(), next_fresh_seed()] == [expected[0]] * 2
    assert [fresh_seed(), fresh_seed()] == expected
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before


def test_a_seed_generator_without_a_seed_follows_manual_seed() -> None:
    torch.manual_seed(3)
    first = SeedGenerator().generate_seed()
    torch.manual_seed(3)
    assert SeedGenerator().generate_seed() == first


def test_a_seed_of_numpys_is_an_integer() -> None:
    assert check_seed(np.int64(3)) == 3
