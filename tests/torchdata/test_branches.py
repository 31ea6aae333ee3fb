"""``unzip`` and ``round_robin_demux``: what goes on which branch. See also ``test_as_core.py``."""

from __future__ import annotations

from typing import Any

import pytest

from torchpipe import IterDataPipe
from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node


def test_what_goes_where() -> None:
    first, third = IterableWrapper([(1, 2, 3), (4, 5, 6)]).unzip(3, columns_to_skip=[1])
    assert list(first.zip(third)) == [(1, 3), (4, 6)]
    branches = IterableWrapper(range(8)).round_robin_demux(3)
    assert [list(branch) for branch in branches] == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert [len(branch) for branch in branches] == [3, 3, 2]
    source = IterableWrapper(range(3))
    with pytest.warns(UserWarning, match="itself"):
        assert source.round_robin_demux(1) == [source]


def test_columns_of_branches() -> None:
    def tree() -> IterDataPipe[Any]:
        one, other = CountingSource(range(9)).shuffle(buffer_size=4).fork(2)
        evens, odds = one.demux(2, lambda item: item % 2)
        left, right = evens.zip(odds).unzip(2)
        return left.zip(other, right)

    check_node(tree, pulls=lambda k: 9)


def test_wrong_items_are_errors() -> None:
    with pytest.raises(TypeError, match="takes sequences, got item 0 of type int: 0"):
        list(IterableWrapper(range(3)).unzip(2)[0])  # type: ignore[misc]
    with pytest.raises(ValueError, match="of length 3"):
        list(IterableWrapper([(1, 2, 3)]).unzip(2)[0])
