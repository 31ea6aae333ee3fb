"""``zip_with_iter`` and ``zip_with_map``."""

from __future__ import annotations

import io
from typing import Any

import pytest

from torchpipe.errors import StateError
from torchpipe.formats.storage.streams import wrap_stream
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.testing import CountingSource, check_node


def first(item: Any) -> Any:
    return item[0]


def joined(item: Any, reference: Any) -> str:
    return f"{item}{reference}"


LETTERS = [("a", 1), ("b", 2), ("c", 3), ("d", 4)]


@pytest.mark.parametrize("order", ["abcd", "dcba", "bd", ""])
def test_L2_exact_resume(order: str) -> None:
    def make() -> Any:
        return CountingSource(list(order)).zip_with_iter(CountingSource(LETTERS), str, first)

    check_node(make, pulls=lambda k: 4)
    assert list(make()) == [(letter, dict(zip("abcd", LETTERS))[letter]) for letter in order]


def test_L2_exact_resume_with_a_small_buffer_and_maps() -> None:
    check_node(
        lambda: CountingSource("bcd").zip_with_iter(
            CountingSource(LETTERS), str, first, keep_key=True, buffer_size=2, merge_fn=joined
        ),
        pulls=lambda k: 4,
    )
    check_node(lambda: CountingSource([2, 0, 1]).zip_with_map(SequenceWrapper("abc"), int))


def test_what_is_handed_out() -> None:
    items, references = IterableWrapper("cab"), IterableWrapper(LETTERS)
    assert list(items.zip_with_iter(references, str, first, merge_fn=joined)) == ["c('c', 3)", "a('a', 1)", "b('b', 2)"]
    assert list(items.zip_with_iter(references, str, first, keep_key=True))[0] == ("c", ("c", ("c", 3)))
    assert list(items.zip_with_iter(IterableWrapper("abc"), str)) == [("c", "c"), ("a", "a"), ("b", "b")]
    table = SequenceWrapper({"a": 1, "b": 2, "c": 3})
    assert list(items.zip_with_map(table, str)) == [("c", 3), ("a", 1), ("b", 2)]
    assert list(items.zip_with_map(table, str, joined, True)) == [("c", "c3"), ("a", "a1"), ("b", "b2")]
    assert len(items.zip_with_map(table, str)) == len(items.zip_with_iter(references, str, first)) == 3


def test_L5_a_full_buffer_drops_the_oldest_and_says_so() -> None:
    streams = [wrap_stream(io.BytesIO(), name=name) for name in "abcd"]
    node = IterableWrapper("da").zip_with_iter(
        IterableWrapper(streams, deepcopy=False), str, lambda stream: str(stream.name), buffer_size=2
    )
    iterator = iterate(node)
    with pytest.warns(UserWarning, match="oldest ones are dropped") as caught:
        next(iterator)
    assert len(caught) == 1
    assert [stream.closed for stream in streams] == [True, True, False, False]
    with pytest.raises(BufferError, match="No matching key can be found.*'a'"):
        next(iterator)
    iterator.close()
    assert [stream.closed for stream in streams] == [True, True, True, False]  # the last one was handed out


def test_L7_keys_that_are_missing_or_double_are_errors() -> None:
    with pytest.raises(BufferError, match="No matching key"):
        list(IterableWrapper("x").zip_with_iter(IterableWrapper(LETTERS), str, first))
    with pytest.raises(ValueError, match="Duplicate key 'a'"):
        list(IterableWrapper("x").zip_with_iter(IterableWrapper("aa"), str))
    with pytest.raises(KeyError, match="maps 7 to 7, which is not a valid key"):
        list(IterableWrapper([7]).zip_with_map(SequenceWrapper("ab"), int))
    with pytest.raises(TypeError, match="unhashable") as caught:
        list(IterableWrapper("x").zip_with_iter(IterableWrapper("x"), lambda item: [item]))
    assert "gives ['x'], which is no key" in str(caught.value)


def test_L8_forged_states_are_refused() -> None:
    node = IterableWrapper("c").zip_with_iter(IterableWrapper(LETTERS), str, first, buffer_size=2)
    state = iterate(node).state_dict()
    for buffer in ([["a", 1], ["a", 2]], [["a", 1]] * 3, 3, [["a"]], [[[], 1]]):
        with pytest.raises(StateError):
            iterate(node).load_state_dict(state | {"buffer": buffer})


def test_a_buffer_may_have_no_bound() -> None:
    items: Any = IterableWrapper("c")
    assert list(items.zip_with_iter(items, str, buffer_size=None)) == [("c", "c")]
