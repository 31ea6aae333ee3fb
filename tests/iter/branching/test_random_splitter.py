"""``random_split``: the parts that torchdata 0.9 made, resumed exactly."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data.datapipes.iter import Shuffler as TorchShuffler
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from torchpipe.errors import GraphError, StateError
from torchpipe.iter import IterableWrapper, RandomSplitter
from torchpipe.map import SequenceWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.testing import CountingSource, check_node


@pytest.mark.parametrize(
    ("weights", "seed", "expected"),  # as torchdata 0.9.0 splits range(10)
    [
        ({"a": 0.5, "b": 0.5}, 0, [[2, 3, 5, 7, 8], [0, 1, 4, 6, 9]]),
        ({"train": 7, "valid": 2, "test": 1}, 3, [[0, 1, 2, 4, 5, 6, 8], [3, 9], [7]]),
        ({"a": 1, "b": 3}, "x", [[4, 7, 9], [0, 1, 2, 3, 5, 6, 8]]),
        ({"a": 0.33, "b": 0.34, "c": 0.33}, 5, [[6, 7, 9], [0, 4, 5], [1, 2, 3, 8]]),
    ],
)
def test_the_parts_are_torchdatas(weights: dict[str, float], seed: Any, expected: list[list[int]]) -> None:
    source = IterableWrapper(range(10))
    parts = source.random_split(weights, seed)
    assert [list(part) for part in parts] == [list(iterate(part, epoch=3)) for part in parts] == expected
    for key, items in zip(weights, expected):
        assert list(source.random_split(weights, seed, target=key)) == items


def test_L2_exact_resume() -> None:
    check_node(
        lambda: CountingSource(range(12)).random_split({0: 0.3, 1: 0.7}, 4, target=1), pulls=lambda k: 12, num_shards=1
    )
    check_node(
        lambda: IterableWrapper(range(12)).random_split({0: 2, 1: 1}, 4)[0].zip(CountingSource(range(12))),
        num_shards=1,
    )


def test_lengths_and_another_seed() -> None:
    source = IterableWrapper(range(10))
    one, other = source.random_split({"a": 3, "b": 7}, seed=1)
    assert (len(one), len(other)) == (3, 7)
    before = list(one)
    assert one.override_seed(2) is one
    assert list(one) != before
    assert sorted([*one, *other]) == list(range(10))
    with pytest.raises(TypeError, match="not known"):
        len(source.random_split({"a": 0.31, "b": 0.69}, seed=1)[0])
    unsized = source.filter(lambda item: item < 8)
    assert len(list(unsized.random_split({"a": 1, "b": 1}, 0, total_length=8, target="a"))) == 4


@pytest.mark.parametrize(
    ("before", "name"),
    [
        (lambda source: source.shuffle(), "Shuffler"),
        (lambda source: source.shuffle().set_seed(3).map(str), "Shuffler"),
        (lambda source: source.window_shuffle(4), "WindowShuffler"),
        (lambda source: source.mix(source, weights=[1, 1]), "Mixer"),
        (lambda source: SequenceWrapper(range(10)).shuffle(), "Shuffler"),
        (lambda source: source.concat(source.shuffle()), "Shuffler"),
        (lambda source: TorchShuffler(source), "ShufflerIterDataPipe"),
        (lambda source: source.sharding_filter(), "ShardingFilter"),
        (
            lambda source: source.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING),
            "ShardingRoundRobinDispatcher",
        ),
    ],
)
def test_what_gives_another_order_in_another_loader_is_refused_before_the_split(before: Any, name: str) -> None:
    with pytest.raises(GraphError, match=rf"cannot stand behind {name}.*(?s:.)*Split first and put it behind each"):
        RandomSplitter(before(IterableWrapper(range(10))), {"a": 1, "b": 1}, 0, total_length=10)


def test_an_item_is_in_one_part_in_every_epoch_and_under_any_number_of_shards() -> None:
    def parts() -> list[Any]:
        return IterableWrapper(range(100)).random_split({"train": 0.5, "valid": 0.5}, seed=0)

    train, valid = parts()[0].shuffle().sharding_filter(), parts()[1].shuffle().sharding_filter()
    for epoch in range(2):
        trained = [
            item for shard in range(3) for item in iterate(train, seed=1, epoch=epoch, shard=shard, num_shards=3)
        ]
        validated = [*iterate(valid, seed=2, epoch=epoch)]
        assert sorted(trained + validated) == list(range(100))


def test_L8_forged_states_are_refused() -> None:
    part = IterableWrapper(range(10)).random_split({"a": 3, "b": 7}, seed=1)[0]
    state = iterate(part).state_dict()
    changes: list[Any] = [
        {"weights": [1.0]},
        {"weights": ["x", 1.0]},
        {"left": 11},
        {"left": 3},
        {"weights": [0.0, 0.0]},
        {"weights": [-3.0, 13.0]},
        {"random": [3, [1], None]},
    ]
    for change in changes:
        with pytest.raises(StateError):
            iterate(part).load_state_dict(state | change)


def test_what_the_parts_cannot_give_is_an_error() -> None:
    source = IterableWrapper(range(10))
    cases: list[Any] = [
        (lambda: list(source.random_split({"a": 1}, 1, total_length=9)[0]), ValueError, "told of 9 items"),
        (lambda: list(source.random_split({"a": 1}, 1, total_length=11)[0]), ValueError, "told of 11 .* input has 10"),
        (lambda: list(source.random_split({"a": 1, "b": 0}, 1, total_length=99)[1]), ValueError, "told of 99 items"),
        (lambda: list(source.random_split({"a": 1}, 1)[0].source), TypeError, "by its parts"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()


def _fails_at_four(item: int) -> int:
    if item == 4:
        raise ValueError("bad")
    return item


@pytest.mark.parametrize("outside", [True, False])
def test_what_on_error_leaves_out_is_not_missed_after_a_resume_either(outside: bool) -> None:
    def part() -> Any:
        made = IterableWrapper(range(10)).map(_fails_at_four)
        if outside:
            return made.random_split({"a": 1, "b": 0}, 1, target="a").on_error("skip")
        return made.on_error("skip").random_split({"a": 1, "b": 0}, 1, total_length=10, target="a")

    assert list(part()) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    iterator = iterate(part())
    assert [next(iterator) for _ in range(6)] == [0, 1, 2, 3, 5, 6]
    resumed = iterate(part())
    resumed.load_state_dict(iterator.state_dict())
    assert list(resumed) == [7, 8, 9]
