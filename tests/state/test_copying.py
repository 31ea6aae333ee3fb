"""Copies of items, and items that share what can be changed in place."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from torchpipe.iter import IterableWrapper
from torchpipe.state.copying import copy_item, separated, used_up_in

SHARED: Any = {"n": 1}
ARRAY = np.arange(9)
TENSOR = torch.arange(9)


@pytest.mark.parametrize(
    "items",
    [
        [SHARED, SHARED],
        [(0, SHARED), (1, SHARED)],
        [{"a": [SHARED]}, deque([SHARED])],
        [ARRAY[:3], ARRAY[2:5]],
        [TENSOR[:3], [TENSOR[3:]]],
        [ARRAY, {"view": ARRAY.reshape(3, 3)}],
    ],
)
def test_items_that_share_something_are_copied(items: list[Any]) -> None:
    before = repr(items)
    made = separated(items)
    assert repr(made) == before
    first, second = made
    assert first is not items[0]
    for part in (
        first,
        *(first.values() if isinstance(first, dict) else first if isinstance(first, list | tuple) else ()),
    ):
        if isinstance(part, dict):
            part["n"] = 2
        elif isinstance(part, list):
            part[0]["n"] = 2
        elif isinstance(part, np.ndarray | torch.Tensor):
            part += 1
    assert repr([items[0], second]) == before


def test_items_that_share_nothing_stay_the_same_objects() -> None:
    items = [{"a": [1]}, {"a": [1]}, np.zeros(3), torch.zeros(3), (1, "text"), (1, "text"), None, None]
    assert separated(items) is items
    plain: list[Any] = [1, 1, "a", "a"]
    assert separated(plain) is plain


class Rows(Dataset[int]):
    def __init__(self) -> None:
        self.rows = [[number] for number in range(9)]


class Counting(IterableDataset[int]):
    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> Iterator[int]:
        self.count += 1
        yield self.count


class Record:
    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.seen = [1]


def test_what_items_are_read_from_stays_and_what_is_beside_it_is_copied() -> None:
    rows, node, module = Rows(), IterableWrapper([1]), torch.nn.Linear(1, 1)
    item = {"from": [rows, node, module], "n": [1]}
    made = copy_item(item)
    assert made["from"] is not item["from"]
    assert made["n"] is not item["n"]
    assert all(one is other for one, other in zip(made["from"], [rows, node, module]))
    parts = [(rows, number) for number in range(3)]
    assert separated(parts) is parts
    record = Record(rows)
    copied = copy_item(record)
    assert copied is not record
    assert copied.rows is rows
    assert copied.seen is not record.seen
    assert separated([record, record])[1].rows is rows
    counting = Counting()
    assert copy_item(counting) is not counting


class Document:
    def __init__(self, words: list[str]) -> None:
        self.words = words

    def read(self) -> str:
        return " ".join(self.words)


class File(Document):
    def close(self) -> None:
        pass


class Tape:
    def __init__(self) -> None:
        self.parts = iter("ab").__next__
        self.handle = (part for part in "ab")  # no generator can be copied

    def read(self) -> str:
        return self.parts()


def test_an_item_with_a_method_read_is_copied_and_an_open_file_is_not() -> None:
    document, file, tape = Document(["a"]), File(["a"]), Tape()
    copied = copy_item(document)
    assert type(copied) is Document
    assert copied.words == ["a"]
    assert copied.words is not document.words
    assert used_up_in(document, copied) is None
    for stream in (file, tape):  # a copy of either would be half made
        assert copy_item(stream) is stream
        assert used_up_in([stream], [stream]) is stream


def test_a_file_that_is_mapped_for_reading_stays_and_one_for_writing_is_copied(tmp_path: Path) -> None:
    np.arange(8).tofile(tmp_path / "numbers")
    read, write = (np.memmap(tmp_path / "numbers", dtype=np.int64, mode=mode) for mode in ("r", "r+"))
    parts = [(read, 0), (read[2:], 1)]
    assert separated(parts) is parts
    assert copy_item(read) is read
    assert copy_item([read[3:]])[0].base is read
    copied = copy_item(write)
    copied[0] = 9
    assert write[0] == 0
    frozen = write.view()
    frozen.flags.writeable = False
    assert copy_item(frozen) is not frozen
    bytes_ = np.frombuffer(b"abc", dtype=np.uint8)
    assert copy_item(bytes_) is bytes_
    locked = np.arange(3)
    locked.flags.writeable = False  # which its owner can undo
    assert copy_item(locked) is not locked


def test_what_nobody_can_change_is_not_copied() -> None:
    table = pyarrow.table({"a": [1, 2]})
    assert copy_item(table) is table
