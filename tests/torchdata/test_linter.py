"""``_check_shuffle_before_sharding``: on every path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchpipe.iter import IterableWrapper, JsonlReader
from torchpipe.map import SequenceWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.torchdata.dataloader2.adapter import Shuffle
from torchpipe.torchdata.dataloader2.linter import _check_shuffle_before_sharding


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
    assert _check_shuffle_before_sharding(make()) is expected


def test_pieces_of_files_that_are_shuffled_are_known(tmp_path: Path) -> None:
    (tmp_path / "0.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in range(60)))

    def graph(**options: Any) -> Any:
        return JsonlReader(tmp_path / "*.jsonl").shard_pieces(piece_bytes=20, **options)

    assert _check_shuffle_before_sharding(graph())
    assert not _check_shuffle_before_sharding(graph(shuffle=False))
    switched = Shuffle(True)(graph(shuffle=False))
    assert _check_shuffle_before_sharding(switched)
    assert list(iterate(switched, seed=1)) == list(iterate(graph(), seed=1)) != list(range(60))
