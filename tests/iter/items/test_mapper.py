"""``map``: whole items, columns, functions with state, errors."""

from __future__ import annotations

import traceback
from functools import partial
from typing import Any

import pytest

from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.node.iterator import NodeIterator
from torchpipe.testing import CountingSource, check_node


def double(item: int) -> int:
    return item * 2


def add(one: int, other: int) -> int:
    return one + other


class Counter:
    """A function with state: numbers its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, item: Any) -> Any:
        self.calls += 1
        return item, self.calls

    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


def test_L2_exact_resume() -> None:
    check_node(lambda: CountingSource(range(9)).map(double))


def test_L2_functions_with_state_are_saved_with_the_node() -> None:
    check_node(lambda: CountingSource(range(9)).map(Counter()).map(Counter()))


def test_a_function_with_state_is_copied_for_each_pass() -> None:
    counter = Counter()
    node = IterableWrapper(range(3)).map(counter)
    assert list(node) == list(node) == [(0, 1), (1, 2), (2, 3)]
    assert counter.calls == 0


def stepped(counter: Any, item: Any, by: Any = 1) -> Any:
    return counter(item), by


class Step:
    """Has a state, and is no function."""

    def __init__(self) -> None:
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def state_dict(self) -> dict[str, int]:
        return {"size": self.size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.size = state["size"]


def grown(step: Step, item: Any) -> Any:
    step.size += 1
    return item, len(step)


PARTIALS: dict[str, Any] = {
    "called": lambda: partial(Counter()),
    "called with more": lambda: partial(partial(stepped, by=2), Counter()),
    "by name, in a list": lambda: partial(lambda item, counters: counters[0](item), counters=[Counter()]),
    "an object that is empty": lambda: partial(grown, Step()),
}


@pytest.mark.parametrize("make", PARTIALS.values(), ids=PARTIALS)
def test_L2_what_has_state_in_a_partial_is_saved_with_the_node(make: Any) -> None:
    check_node(lambda: CountingSource(range(6)).map(make()).map(make()))
    node = IterableWrapper(range(3)).map(make())
    assert list(node) == list(node)
    with pytest.raises(TypeError, match="has a state of its own"):
        node.parallel_map(make())
    with pytest.raises(TypeError, match="has a state of its own"):
        node.interleave(make())


def test_L2_what_has_state_in_a_partial_goes_back_to_it_with_each_attempt() -> None:
    failed: set[int] = set()

    def once(counter: Counter, item: int) -> Any:
        result = counter(item)
        if item not in failed:
            failed.add(item)
            raise OSError(item)
        return result

    node = IterableWrapper(range(3)).map(partial(once, Counter())).retry(2, backoff_s=0)
    assert list(node) == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize(
    ("item", "arguments", "expected"),
    [
        ((1, 2, 3), {"input_col": 1}, (1, 4, 3)),
        ([1, 2, 3], {"input_col": 1}, [1, 4, 3]),
        ((1, 2, 3), {"input_col": -1}, (1, 2, 6)),
        ((1, 2, 3), {"input_col": 0, "output_col": 2}, (1, 2, 2)),
        ((1, 2, 3), {"input_col": 0, "output_col": -1}, (1, 2, 3, 2)),
        ([1, 2, 3], {"input_col": 0, "output_col": [-1]}, [1, 2, 3, 2]),
        ((1, 2, 3), {"input_col": [2]}, (1, 2, 6)),
        ({"a": 1, "b": 2}, {"input_col": "b"}, {"a": 1, "b": 4}),
        ({"a": 1, "b": 2}, {"input_col": "b", "output_col": "c"}, {"a": 1, "b": 2, "c": 4}),
    ],
)
def test_columns(item: Any, arguments: dict[str, Any], expected: Any) -> None:
    result = next(iter(IterableWrapper([item]).map(double, **arguments)))
    assert (type(result), result) == (type(expected), expected)


@pytest.mark.parametrize(
    ("item", "arguments", "expected"),
    [
        ((1, 2, 3, 4), {"input_col": [0, 2]}, (4, 2, 4)),
        ([1, 2, 3, 4], {"input_col": (3, 1)}, [1, 3, 6]),
        ((1, 2, 3), {"input_col": [0, 1], "output_col": -1}, (1, 2, 3, 3)),
        ({"a": 1, "b": 2, "c": 3}, {"input_col": ["c", "a"]}, {"b": 2, "c": 4}),
    ],
)
def test_several_columns(item: Any, arguments: dict[str, Any], expected: Any) -> None:
    result = next(iter(IterableWrapper([item]).map(add, **arguments)))
    assert (type(result), result) == (type(expected), expected)


@pytest.mark.parametrize("item", [[1, 2], {0: 1, 1: 2}])
def test_the_item_itself_is_not_changed(item: Any) -> None:
    before = item.copy()
    node = IterableWrapper([item], deepcopy=False)
    assert list(node.map(double, 0)) == list(node.map(double, 0)) != [before]
    assert item == before


def test_L7_a_functions_error_passes_unchanged_and_the_node_is_in_its_traceback() -> None:
    class Odd(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(one, two)

    def fail(item: int) -> int:
        raise Odd(item, 2)

    iterator = iterate(IterableWrapper(range(3)).map(fail))
    with pytest.raises(Odd) as caught:
        next(iterator)
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    owners = [frame.f_locals.get("self") for frame in frames]
    assert [owner.node for owner in owners if isinstance(owner, NodeIterator) and "run" in str(frames)][-1].fn is fail


def test_L7_none_and_exceptions_are_items() -> None:
    items = [None, StopIteration(3), ValueError("x"), StopIteration]
    assert [type(item) for item in IterableWrapper(items).map(lambda item: item)] == [type(item) for item in items]


def test_L7_a_stop_iteration_raised_by_a_function_does_not_end_the_stream_silently() -> None:
    def stop(item: int) -> int:
        raise StopIteration

    with pytest.raises(RuntimeError):
        list(IterableWrapper(range(3)).map(stop))
