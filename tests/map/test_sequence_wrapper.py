"""``SequenceWrapper`` and ``map`` of map-style nodes."""

from __future__ import annotations

import pickle
from typing import Any

import torch
from torch.utils.data import DataLoader

from torchpipe.map import Mapper, SequenceWrapper


def double(item: Any) -> Any:
    return item * 2


def test_reading() -> None:
    node = SequenceWrapper([1, 2, 3]).map(double)
    assert [node[index] for index in range(len(node))] == [2, 4, 6]
    assert SequenceWrapper({"a": 1}).map(double)["a"] == 2
    assert Mapper(SequenceWrapper("ab"))[1] == "b"
    assert pickle.loads(pickle.dumps(node))[2] == 6


def test_items_are_copied_when_read_unless_told_otherwise() -> None:
    items = [[1], [2]]
    SequenceWrapper(items)[0].append(3)
    assert items == [[1], [2]]
    SequenceWrapper(items, deepcopy=False)[0].append(3)
    assert items == [[1, 3], [2]]


def test_torchs_loader_reads_them() -> None:
    batches = list(DataLoader(SequenceWrapper(range(5)).map(double), batch_size=2))
    assert [batch.tolist() for batch in batches] == [[0, 2], [4, 6], [8]]
    assert torch.equal(batches[0], torch.tensor([0, 2]))
