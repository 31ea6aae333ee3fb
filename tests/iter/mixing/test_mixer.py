"""``mix``: proportions hold in every stretch, stop policies, weights that change, exact between any two items."""

from __future__ import annotations

import ast
import os
import random
import re
import signal
import warnings
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.executors import make_loader, make_service, pids
from torchpipe import DataLoader2, IterDataPipe
from torchpipe.errors import ReplayWarning, StateError, StateMismatchError
from torchpipe.iter import IterableWrapper, Mixer
from torchpipe.node.datapipe import iterate
from torchpipe.state import decode, encode
from torchpipe.testing import CountingSource, check_node

WEIGHTS = st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any)


def sources(*lengths: int) -> list[CountingSource[Any]]:
    return [CountingSource([(number, index) for index in range(length)]) for number, length in enumerate(lengths)]


@given(WEIGHTS, st.integers(0, 9))
def test_proportions_hold_in_every_stretch(weights: list[int], seed: int) -> None:
    counts = [0 for _ in weights]
    node = Mixer(*sources(*[200] * len(weights)), weights=weights)
    for total, (number, index) in enumerate(iterate(node, seed=seed), 1):
        assert index == counts[number]  # each input in its own order
        counts[number] += 1
        for count, weight in zip(counts, weights):
            share = total * weight / sum(weights)
            assert -max(0, len(weights) - 1) - 1e-9 <= count - share <= 1 + 1e-9
    assert 200 in counts


@given(WEIGHTS, st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_proportions_hold_by_tokens(weights: list[int], sizes: list[int]) -> None:
    inputs = [CountingSource([[n] * (sizes[k % len(sizes)] + n) for k in range(300)]) for n in range(len(weights))]
    tokens = [0 for _ in weights]
    for item in iterate(Mixer(*inputs, weights=weights, by="tokens")):
        tokens[item[0]] += len(item)
        for count, weight in zip(tokens, weights):
            assert abs(count - sum(tokens) * weight / sum(weights)) <= 2 * len(weights) * (max(sizes) + 3)
    assert max(tokens) >= 300


def test_the_order_has_no_period_that_sharding_could_meet() -> None:
    one, other = (IterableWrapper([name] * 200) for name in "ab")
    for shard in range(2):
        node = one.mix(other, weights=[1, 1]).sharding_filter()
        counts = Counter(iterate(node, shard=shard, num_shards=2))
        assert 60 < counts["a"] < 140
    assert list(iterate(one.mix(other, weights=[1, 1]), seed=1)) != list(iterate(one.mix(other, weights=[1, 1])))


@given(st.lists(st.integers(1, 12), min_size=1, max_size=3), st.integers(0, 5))
def test_stop_policies(lengths: list[int], seed: int) -> None:
    def run(stop: Any) -> list[tuple[int, int]]:
        return list(iterate(Mixer(*sources(*lengths), weights=[3, 2, 1][: len(lengths)], stop=stop), seed=seed))

    first, every, restart = run("first_exhausted"), run("all_exhausted"), run("restart")
    counts = Counter(number for number, _ in first)
    assert any(counts[number] == length for number, length in enumerate(lengths))
    assert sorted(every) == sorted((number, index) for number, length in enumerate(lengths) for index in range(length))
    assert every[: len(first)] == first == restart[: len(first)]
    assert set(restart) == set(every)
    whole = [Counter(number for number, _ in restart)[number] // length for number, length in enumerate(lengths)]
    assert min(whole) == 1
    endless = iterate(Mixer(*sources(*lengths), weights=[1] * len(lengths), stop="never"))
    assert len([next(endless) for _ in range(100)]) == 100
    assert len(Mixer(*sources(*lengths), weights=[1] * len(lengths), stop="all_exhausted")) == sum(lengths)


@pytest.mark.parametrize(
    "options",
    [
        {"weights": [2, 1, 1]},
        {"weights": [0.7, 0.0, 0.3], "by": "tokens", "stop": "restart"},
        {"weights": {0: [1, 1, 0], 7: [0, 1, 3]}, "stop": "all_exhausted"},
        {"weights": lambda count: [1, count / 10, 0.5], "by": len, "stop": "never"},
    ],
    ids=["plain", "restart", "schedule", "function"],
)
def test_L2_exact_resume(options: Any) -> None:
    def make() -> Any:
        inputs = [IterableWrapper([[n] * (k % 3 + 1) for k in range(5 + n)]).shuffle() for n in range(3)]
        return Mixer(*inputs, **options)

    check_node(make, limit=30, positions=12)
    check_node(lambda: Mixer(*sources(9, 9, 9), weights=[2, 1, 1]), num_shards=1, epochs=[0])  # pulls one for each item


def test_a_restarted_input_is_shuffled_anew() -> None:
    node = IterableWrapper(range(8)).shuffle().mix(weights=[1], stop="never")
    items = [item for item, _ in zip(iterate(node), range(24))]
    assert sorted(items[:8]) == sorted(items[8:16]) == list(range(8))
    assert items[:8] != items[8:16]


def mixed(weights: Any) -> Any:
    one, other = (IterableWrapper([name] * 400).sharding_filter() for name in "ab")
    return one.mix(other, weights=weights)


def test_L2_weights_that_change_after_a_checkpoint() -> None:
    """The stream of the longer schedule from the start on, whatever was made again or ahead."""
    loaders = {}
    for name, weights in (("short", [3, 1]), ("long", {0: [3, 1], 60: [1, 3]})):
        loaders[name] = DataLoader2(mixed(weights), reading_service=make_service(None, 2, every=7))
        loaders[name].seed(1)
    got = [item for _, item in zip(range(50), loaders["short"])]
    loaders["long"].load_state_dict(loaders["short"].state_dict())
    got += list(loaders["long"])
    whole = DataLoader2(mixed({0: [3, 1], 60: [1, 3]}), reading_service=make_service(None, 2))
    whole.seed(1)
    assert got == list(whole)


def test_other_weights_at_the_position_are_refused_with_the_way_out() -> None:
    iterator = iterate(mixed([3, 1]))
    iterator.drop(40)
    state = iterator.state_dict()

    def go_on(weights: Any, state: Any) -> None:
        resumed = iterate(mixed(weights))
        resumed.load_state_dict(state)
        next(resumed)

    with pytest.raises(StateMismatchError) as caught:
        go_on([1, 1], state)
    assert "after 40 samples in shard 0" in str(caught.value)
    assert "weights={0: [0.75, 0.25], 1100: [0.5, 0.5]}" in str(caught.value)
    refused = iterate(mixed([1, 1]))
    refused.load_state_dict(state)
    with pytest.raises(StateMismatchError):
        go_on([1, 1], refused.state_dict())  # saved straight after loading
    go_on({0: [0.75, 0.25], 1100: [0.5, 0.5]}, state)
    go_on({0: [1, 1], 20: [6, 2]}, state)  # what is past does not matter any more
    go_on(lambda count: [3, 1] if count < 41 else [1, 1], state)
    with pytest.raises(StateMismatchError):
        go_on(lambda count: [1, 1], state)


def test_L2_weights_that_would_change_what_was_delivered_are_refused() -> None:
    short = DataLoader2(mixed([3, 1]), reading_service=make_service(None, 1, every=20))
    short.seed(1)
    iterator = iter(short)
    for _ in range(35):
        next(iterator)
    state = short.state_dict()  # a snapshot after 20, and 15 to drop
    loader = DataLoader2(mixed({0: [3, 1], 30: [1, 3]}), reading_service=make_service(None, 1))
    loader.load_state_dict(state)
    with pytest.raises(StateMismatchError, match="after 35 samples .* from a number on that no shard has come to"):
        list(loader)


class Stateless(IterDataPipe[Any]):
    """A generator that draws from the global random states: a shard with it is made again from its start."""

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe

    def __iter__(self) -> Any:
        for item in self.datapipe:
            yield item, random.random()


def refuses(datapipe: Any) -> Any:
    """No state can be taken of it: a generator after a list."""
    return datapipe.flatmap(lambda item: [item] if item != "b" else iter([item]))


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("every", [None, 1, 50, 1 << 40])
@pytest.mark.parametrize(
    "behind",
    [lambda node: node, lambda node: node.batch(8).shuffle(buffer_size=9), Stateless, refuses],
    ids=["alone", "batches", "replayed", "refusing"],
)
def test_L3_the_weights_that_the_error_shows_work(behind: Any, every: int | None, workers: int | None) -> None:
    def loader(weights: Any) -> DataLoader2[Any]:
        one, other = (IterableWrapper([name] * 9000).sharding_filter() for name in "ab")
        mix = one.mix(other, weights=weights, by=lambda item: 100, stop="all_exhausted")
        return make_loader(behind(mix), make_service(workers, 2, every=every), seed=1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReplayWarning)
        for count in (1, 40):
            with loader([7, 3]) as before:
                stream = iter(before)
                for _ in range(count):
                    next(stream)
                state = before.state_dict()
                expected = [repr(next(stream)) for _ in range(30)]
            with loader([5, 5]) as other, pytest.raises(StateMismatchError) as caught:
                other.load_state_dict(state)
                list(other)  # a shard that has given nothing yet has no past
            shown = re.search(r"for example weights=(\{.*?\})", str(caught.value))
            assert shown is not None
            with loader(ast.literal_eval(shown[1])) as after:
                after.load_state_dict(state)
                stream = iter(after)
                if workers:
                    os.kill(pids(after)[0], signal.SIGKILL)
                assert [repr(next(stream)) for _ in range(30)] == expected


def with_few_files(files: int, stop: Any) -> Any:
    one = IterableWrapper(range(100)).sharding_filter()
    other = IterableWrapper(range(files)).sharding_filter().flatmap(lambda file: [file] * 5)
    return one.mix(other, weights=[7, 3], stop=stop)


MISSING = r"no item of input 1 \(FlatMapper.*\) in shard {} of 8.*Use fewer shards.*mix first and divide"


def test_L7_a_shard_that_would_end_at_once_for_want_of_an_input_is_an_error() -> None:
    node = with_few_files(2, "first_exhausted")
    for graph in (node, node.on_error("skip", budget=None)):
        with pytest.raises(RuntimeError, match=MISSING.format(2)):
            list(make_loader(graph, make_service(None, 8)))
    with pytest.raises(RuntimeError, match=MISSING.format(2)), make_loader(node, make_service(2, 8)) as loader:
        list(loader)
    assert list(make_loader(with_few_files(8, "first_exhausted"), make_service(None, 8)))
    list(make_loader(with_few_files(0, "first_exhausted"), make_service(None, 1)))  # nobody is told of that: it is said


def test_L7_a_shard_without_items_of_an_input_is_told_where_others_go_on() -> None:
    with pytest.warns(UserWarning, match=MISSING.format("[2-7]")) as told:
        items = list(make_loader(with_few_files(2, "all_exhausted"), make_service(None, 8)))
    assert len(told) == 6
    assert sorted(items) == sorted([*range(100), *[0] * 5, *[1] * 5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(make_loader(with_few_files(8, "all_exhausted"), make_service(None, 8)))) == 140
        assert len(list(make_loader(with_few_files(0, "all_exhausted"), make_service(None, 1)))) == 100
        empty: Any = IterableWrapper([])
        whole = IterableWrapper(range(100)).mix(empty, weights=[1, 1], stop="all_exhausted").sharding_filter()
        assert len(list(make_loader(whole, make_service(None, 8)))) == 100


def raising(count: int) -> list[float]:
    if count > 3:
        raise ValueError("no weights any more")
    return [1, 1]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"weights": [1, 1], "stop": "restart"}, "it would do so for ever"),
        ({"weights": [1, 1], "stop": "never"}, "it would do so for ever"),
        ({"weights": raising, "stop": "all_exhausted"}, "no weights any more"),
        ({"weights": lambda count: [1], "stop": "all_exhausted"}, "1 numbers for 2 inputs"),
    ],
    ids=["restart", "never", "raising", "wrong"],
)
def test_L7_what_stays_wrong_is_not_left_out(options: Any, error: str) -> None:
    node = IterableWrapper(range(30)).mix(IterableWrapper([]), **options).on_error("skip", budget=None)
    with pytest.raises((RuntimeError, ValueError), match=error):
        list(node.take(100))


def test_an_item_without_a_size_is_left_out() -> None:
    items = ["a", None, "b", 3, "c"]
    node = IterableWrapper(items).mix(weights=[1], by="tokens").on_error("skip", budget=None)
    assert list(node) == ["a", "b", "c"]


def test_wrong_items_are_errors() -> None:
    node = IterableWrapper([1])
    with pytest.raises(TypeError, match="an item of type int has no length"):
        list(node.mix(weights=[1], by="tokens"))
    with pytest.raises(TypeError, match="a dict without input_ids or tokens"):
        list(IterableWrapper([{"x": [1]}]).mix(weights=[1], by="tokens"))
    with pytest.raises(ValueError, match="the size of an item must be a number from 0 on, <lambda> returned -1"):
        list(node.mix(weights=[1], by=lambda item: -1))
    with pytest.raises(RuntimeError, match="input 1 anew, and it has no items"):
        list(node.mix(IterableWrapper([]), weights=[1, 1], stop="never").take(50))
    with pytest.raises(TypeError, match="length"):
        len(node.mix(weights=[1]))


@pytest.mark.parametrize(
    "forge",
    [
        {"lacks": [0.0]},
        {"lacks": [float("nan"), 0.0]},
        {"lacks": ["x", 0.0]},
        {"rounds": [0, -1]},
        {"rounds": [0, 1 << 40]},
        {"count": float("inf")},
        {"count": "1"},
        {"now": [1.0]},
        {"weights": [[0, [0.0, 0.0]]]},
        {"weights": [["x", [0.5, 0.5]]]},
        {"random": {"key": [], "draws": 0}},
    ],
    ids=str,
)
def test_L8_forged_states_are_refused(forge: dict[str, Any]) -> None:
    iterator = iterate(mixed([3, 1]))
    iterator.drop(9)
    state = decode(encode(iterator.state_dict()))
    with pytest.raises(StateError):
        iterate(mixed([3, 1])).load_state_dict(state | forge)
