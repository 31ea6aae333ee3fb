"""``drop``, ``slice``, ``flatten`` and ``add_index``."""

from __future__ import annotations

from typing import Any

import pytest

from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node

ROW = (0, 1, 2)
NAMED = {"a": 0, "b": 1, "c": 2}
NESTED = (0, (1, 2), [3, [4]], "56")
TREE = {"a": {"x": 1}, "b": [2, 3], "c": {"y": {"z": 4}}}


@pytest.mark.parametrize(
    ("item", "form", "arguments", "expected"),
    [
        (ROW, "drop", (1,), (0, 2)),
        (list(ROW), "drop", ([0, 2],), [1]),
        (NAMED, "drop", ("a",), {"b": 1, "c": 2}),
        (NAMED, "drop", (["a", "c"],), {"b": 1}),
        (ROW, "slice", (1,), (1, 2)),
        (list(ROW), "slice", (0, 3, 2), [0, 2]),
        (ROW, "slice", (-2,), (1, 2)),
        (ROW, "slice", ([2, 0],), (0, 2)),
        (NAMED, "slice", ("b",), {"b": 1}),
        (NAMED, "slice", (["c", "a"],), {"a": 0, "c": 2}),
        (NESTED, "flatten", (), (0, 1, 2, 3, [4], "56")),
        (list(NESTED), "flatten", (1,), [0, 1, 2, [3, [4]], "56"]),
        (NESTED, "flatten", ([0, 2],), (0, (1, 2), 3, [4], "56")),
        (TREE, "flatten", (), {"x": 1, "b": [2, 3], "y": {"z": 4}}),
        (NESTED, "flatten", ([],), NESTED),
        (TREE, "flatten", ([],), TREE),
        (ROW, "drop", ([],), ROW),
        (ROW, "slice", ([],), ()),
        (TREE, "flatten", ("c",), {"a": {"x": 1}, "b": [2, 3], "y": {"z": 4}}),
    ],
)
def test_parts(item: Any, form: str, arguments: Any, expected: Any) -> None:
    before = repr(item)
    node = getattr(IterableWrapper([item], deepcopy=False), form)(*arguments)
    (found,) = list(node)
    assert (type(found), found, repr(item), len(node)) == (type(expected), expected, before, 1)


def test_L2_exact_resume() -> None:
    rows = [(number, (number, number)) for number in range(7)]
    check_node(lambda: CountingSource(rows).drop(0).flatten().slice(1))
    check_node(lambda: CountingSource([{"a": number} for number in range(7)]).shuffle().add_index(), pulls=lambda k: 7)


def test_numbers() -> None:
    items = [{"a": 3}, {"index": 4}]
    node = IterableWrapper(items, deepcopy=False)
    assert list(node.add_index()) == [{"a": 3, "index": 0}, {"index": 1}]
    assert list(node.add_index("number"))[1] == {"index": 4, "number": 1}
    assert items == [{"a": 3}, {"index": 4}]
    assert len(node.add_index()) == 2


@pytest.mark.parametrize(
    ("item", "form", "arguments", "error", "message"),
    [
        (ROW, "drop", (3,), IndexError, "drop found no index 3"),
        (ROW, "drop", (-1,), IndexError, "no index -1"),
        (NAMED, "drop", ("d",), KeyError, "drop found no 'd'"),
        (ROW, "slice", ([3],), IndexError, "slice found no index 3"),
        (NAMED, "slice", ("d",), KeyError, "slice found no 'd'"),
        (ROW, "flatten", ([0, 4],), IndexError, "flatten found no index 4"),
        ({"a": 1, "b": {"a": 2}}, "flatten", (), ValueError, "a key twice"),
        ("text", "drop", (0,), TypeError, "tuples, lists or dicts"),
        (3, "slice", (0,), TypeError, "tuples, lists or dicts"),
        (ROW, "add_index", (), TypeError, "needs dicts"),
    ],
)
def test_L7_what_is_not_there_is_an_error(item: Any, form: str, arguments: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        list(getattr(IterableWrapper([item]), form)(*arguments))
