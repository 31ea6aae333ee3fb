"""``check_shuffle_before_sharding``: on every path."""

from __future__ import annotations

from typing import Any

import pytest

from torchpipe.graph import check_shuffle_before_sharding
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper


def source() -> Any:
    return IterableWrapper([(1, 2)])


def two(first: bool, second: bool) -> Any:
    one, other = source().unzip(2)
    one = one.shuffle() if first else one.map(str)
    return one.sharding_filter().zip((other.shuffle() if second else other).map(str).sharding_filter())


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: source().map(str), True),
        (lambda: source().shuffle().map(str).sharding_filter(), True),
        (lambda: source().map(str).sharding_filter(), False),
        (lambda: source().sharding_filter().shuffle(), False),
        (lambda: source().batch(1).in_batch_shuffle().sharding_filter(), True),
        (lambda: SequenceWrapper([1]).shuffle().sharding_filter(), True),
        (lambda: two(True, True), True),
        (lambda: two(True, False), False),
        (lambda: source().shuffle().unzip(2)[0].sharding_filter(), True),
        (lambda: source().shuffle().zip(source()).sharding_filter(), False),
    ],
)
def test_every_path_counts(make: Any, expected: bool) -> None:
    assert check_shuffle_before_sharding(make()) is expected
