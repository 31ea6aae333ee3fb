"""Mixtures that change at a checkpoint: counts by source, when weights may change, and a source of weight 0."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reading_services import MultiProcessingReadingService
from tests.tries import tries
from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.errors import StateError, StateMismatchError
from torchpipe.iter import IterableWrapper, Mixer


def tag(item: list[Any]) -> list[Any]:
    item.append(len(item))  # its argument is changed
    return item


def source(name: str, length: int = 40) -> Any:
    return IterableWrapper([[name, number] for number in range(length)]).shuffle(buffer_size=7).sharding_filter()


def loader_of(names: str, weights: Any, *, workers: int = 0, shards: int = 2, **options: Any) -> DataLoader2[Any]:
    options = {"stop": "restart", **options}
    mixer = Mixer(*map(source, names), weights=weights, names=list(names), **options)
    graph = mixer.map(tag).shuffle(buffer_size=3).enumerate()
    service: Any = InProcessReadingService(num_shards=shards)
    if workers:
        service = MultiProcessingReadingService(num_workers=workers, num_shards=shards)
    loader = DataLoader2(graph, reading_service=service)
    loader.seed(2)
    return loader


def names_in(items: Any) -> Counter[str]:
    return Counter(item[1][0] for item in items)


def test_inputs_and_weights_by_name() -> None:
    a, b = source("a"), source("b")
    plain = list(DataLoader2(Mixer(a, b, weights=[3, 1], stop="all_exhausted")))
    assert len(plain) == 80
    for weights in ({"a": 3, "b": 1}, {"b": 1, "a": 3}, {0: {"a": 3, "b": 1}}, lambda _: {"b": 1, "a": 3}):
        named = a.mix(b, weights=weights, stop="all_exhausted", names=["a", "b"])
        one, other = (DataLoader2(node) for node in (named, Mixer(a, b, weights=[3, 1], stop="all_exhausted")))
        one.seed(1), other.seed(1)
        assert list(one) == list(other)
    assert Mixer(a, b, weights={"a": 1}, names=["a", "b"]).schedule().at(0)[0] == [1.0, 0.0]
    with pytest.raises(ValueError, match="weights name 'c'"):
        Mixer(a, weights={"c": 1}, names=["a"])
    with pytest.raises(ValueError, match="weights name 'a'"):
        Mixer(a, weights={"a": 1})
    for wrong in ("a", [1], {"a"}, {"a": 1}.keys()):
        with pytest.raises(TypeError, match="names are texts"):
            Mixer(a, weights=[1], names=wrong)  # type: ignore[arg-type]
    for few in (["a"], ["a", "a"]):
        with pytest.raises(ValueError, match="each of 2 inputs"):
            Mixer(a, b, weights=[1, 1], names=few)


@pytest.mark.parametrize("workers", [0, 2])
def test_counts_by_source_are_those_of_what_was_drawn(workers: int) -> None:
    with loader_of("ab", {"a": 3, "b": 1}, workers=workers, stop="never") as loader:
        assert [each.samples for each in loader.mixtures()[0].sources] == [0, 0]
        assert loader.next_change() == 0
        stream = iter(loader)
        for taken in (1, 9, 60, 130):
            loader.skip(taken)
            (mixture,) = loader.mixtures()
            a, b = mixture.sources
            drawn = a.samples + b.samples  # type: ignore[operator]
            assert (a.name, b.name) == ("a", "b")
            given = loader.state_dict()["delivered"]
            assert given <= drawn <= given + 2 * 3  # of each shard, two more wait in the shuffle's buffer
            assert abs(a.samples - 0.75 * drawn) <= 4  # type: ignore[operator]
            assert mixture.next_change == loader.next_change() in range(drawn // 2, drawn // 2 + 4)
        assert (a.passes, b.passes) == (3, 1)
        next(stream)
    assert DataLoader2(IterableWrapper(range(3))).mixtures() == []
    with pytest.raises(ValueError, match="no mix"):
        DataLoader2(IterableWrapper(range(3))).next_change()


@given(st.integers(1, 40))
@settings(max_examples=tries(10))
def test_weights_may_change_from_next_change_on_and_not_before(taken: int) -> None:
    loader = loader_of("ab", {"a": 3, "b": 1})
    stream = iter(loader)
    list(islice(stream, taken))
    state, number = loader.state_dict(), loader.next_change()
    rest = list(islice(stream, 8))

    changed = loader_of("ab", {0: {"a": 3, "b": 1}, number: {"b": 1}})
    changed.load_state_dict(state)
    stream = iter(changed)
    assert next(stream) == rest[0]  # of the buffer, or drawn by the old weights
    list(islice(stream, 12))
    assert names_in(islice(stream, 20))["a"] <= 4  # the buffers may hold some
    if number > 2:
        early = loader_of("ab", {0: {"a": 3, "b": 1}, number - 2: {"b": 1}})
        with pytest.raises(StateMismatchError, match="stands after"):
            early.load_state_dict(state)
            list(early)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("taken", [0, 1, 5, 37])
def test_a_source_of_weight_0_begins_and_the_others_go_on_where_they_stood(taken: int, workers: int) -> None:
    with loader_of("abc", {"a": 1, "b": 1}, workers=workers, shards=1, stop="all_exhausted") as loader:
        stream = iter(loader)
        before = list(islice(stream, taken))
        state, number = loader.state_dict(), loader.next_change()
        whole = before + list(stream)
    assert "c" not in names_in(whole)
    weights = {0: {"a": 1, "b": 1}, number: {"a": 1, "b": 1, "c": 2}}
    with loader_of("abc", weights, workers=workers, shards=1, stop="all_exhausted") as changed:
        changed.load_state_dict(state)
        stream = iter(changed)
        after = list(islice(stream, 10))
        again = changed.state_dict()
        after += list(stream)
    items = [item for _, item in before + after]
    assert sorted(item[:2] for item in items) == [[name, number] for name in "abc" for number in range(40)]
    for name in "ab":  # in the order in which they would have come, but for what the buffers mix
        then, now = ([item for _, item in found if item[0] == name] for found in (whole, before + after))
        assert then[: taken // 3] == now[: taken // 3]
    assert [number for number, _ in before + after] == list(range(120))
    if taken:
        with loader_of("abc", weights, shards=1, stop="all_exhausted") as resumed:
            resumed.load_state_dict(again)
            assert list(resumed) == after[10:]
            assert list(islice(resumed, 3))  # and in the next epoch


@pytest.mark.parametrize("exact", [False, True])
def test_other_sources_are_refused(exact: bool) -> None:
    with loader_of("ab", {"a": 1, "b": 1}) as loader:
        begin = loader.state_dict()
        stream = iter(loader)
        list(islice(stream, 30))
        state, number = loader.state_dict(exact=exact), loader.next_change()
    weights = {0: {"a": 1, "b": 1}, number: {"a": 1, "b": 1, "c": 1}}
    way_out = r"another graph(.|\n)*from the start, with weight 0"
    for names, others, says in (("abc", weights, way_out), ("cab", weights, "another graph"), ("a", {"a": 1}, way_out)):
        for one in (begin, state):
            with pytest.raises(StateMismatchError, match=says):
                loader_of(names, others).load_state_dict(one)
    early = loader_of("ab", {"a": 1, "b": 2})
    with pytest.raises(StateMismatchError, match="stands after"):  # from now on at the latest
        early.load_state_dict(state)
        list(early)
    renamed = loader_of("ba", {"a": 1, "b": 1})
    with pytest.raises(StateMismatchError, match="inputs named|another graph"):
        renamed.load_state_dict(state)
        list(renamed)


def test_other_names_of_the_same_sources_are_refused() -> None:
    def make(names: list[str]) -> DataLoader2[Any]:
        return DataLoader2(Mixer(source("x"), source("x"), weights=[1, 1], names=names))

    state = make(["a", "b"])
    list(islice(state, 9))
    with pytest.raises(StateMismatchError, match="inputs named 'a', 'b', and has 'b', 'a'"):
        other = make(["b", "a"])
        other.load_state_dict(state.state_dict())
        list(other)


def test_a_loaded_loader_in_process_says_how_it_can_be_asked() -> None:
    with loader_of("ab", {"a": 3, "b": 1}) as loader:
        list(islice(loader, 9))
        state = loader.state_dict()
    with loader_of("ab", {"a": 3, "b": 1}) as loader:
        loader.load_state_dict(state)
        for ask in (loader.next_change, loader.mixtures):
            with pytest.raises(StateError, match="take an item first"):
                ask()
        stream = iter(loader)
        next(stream)
        assert loader.next_change() > 0
    with loader_of("ab", {"a": 3, "b": 1}, workers=2) as loader:
        loader.load_state_dict(state)
        assert loader.next_change() > 0
