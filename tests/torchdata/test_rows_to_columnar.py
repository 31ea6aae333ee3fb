"""``rows2columnar``."""

from __future__ import annotations

import pytest

from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node


def test_columns() -> None:
    dicts = [{"a": 1, "b": 2}, {"a": 3, "b": 4}, {"a": 5, "b": 6}]
    rows = [(1, 2), (3, 4), (5, 6)]
    assert list(IterableWrapper(dicts).batch(2).rows2columnar()) == [{"a": [1, 3], "b": [2, 4]}, {"a": [5], "b": [6]}]
    assert list(IterableWrapper(dicts).batch(3).rows2columnar(["b"])) == [{"b": [2, 4, 6]}]
    assert list(IterableWrapper(rows).batch(3).rows2columnar(["x", "y"])) == [{"x": [1, 3, 5], "y": [2, 4, 6]}]
    check_node(lambda: CountingSource(dicts).batch(2).rows2columnar(), pulls=lambda k: 2 * k)
    assert len(IterableWrapper(dicts).batch(2).rows2columnar()) == 2
    with pytest.raises(KeyError, match="no column 'c'"):
        list(IterableWrapper(dicts).batch(2).rows2columnar(["c"]))
    with pytest.raises(TypeError, match="got 1: is a batch"):
        list(IterableWrapper(rows).rows2columnar(["x", "y"]))
    with pytest.raises(ValueError, match="2 values.*and 1 column_names"):
        list(IterableWrapper(rows).batch(2).rows2columnar(["x"]))
