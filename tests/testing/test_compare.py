"""What makes two items equal: all that another process would get of them, and nothing else."""

from __future__ import annotations

import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from torchpipe.compat.torch_datapipes import DataChunk
from torchpipe.testing.compare import digest_of, value_of


class Rows(list[int]):
    source = ""


class Record(dict[str, int]):
    source = ""


class Text(str):
    source = ""


class Number(int):
    source = ""


class Picture(torch.Tensor):
    source = ""


class Point(NamedTuple):
    x: int
    y: int


def from_source(item: Any, source: str) -> Any:
    item.source = source
    return item


SUBCLASSES = {
    "list": lambda source: from_source(Rows([1, 2]), source),
    "dict": lambda source: from_source(Record(a=1), source),
    "str": lambda source: from_source(Text("a"), source),
    "int": lambda source: from_source(Number(3), source),
    "Tensor": lambda source: from_source(torch.arange(3).as_subclass(Picture), source),
    "masked array": lambda source: np.ma.masked_array([1, 2, 3], mask=[0, 0, source == "b"]),
}


@pytest.mark.parametrize("kind", SUBCLASSES)
def test_attributes_that_a_class_adds_to_data_count(kind: str) -> None:
    make = SUBCLASSES[kind]
    assert value_of(make("a")) == value_of(make("a"))
    assert value_of(make("a")) != value_of(make("b"))
    assert digest_of([make("a")]) != digest_of([make("b")])
    assert digest_of(make("a")) == digest_of(pickle.loads(pickle.dumps(make("a"))))


def of_file(folder: Path) -> Any:
    np.arange(5).tofile(folder / "numbers")
    return np.memmap(folder / "numbers", dtype=np.int64, mode="r", offset=8)


def table(folder: Path) -> Any:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"a": [1, 2, None], "s": ["x", None, "zz"]}), folder / "table")
    return parquet.read_table(folder / "table").slice(0, 2)


ITEMS = {
    "table of a file": table,
    "mapped array": of_file,
    "named tuple": lambda _: Point(1, 2),
    "batch of batches": lambda _: DataChunk([DataChunk([1, 2]), DataChunk([3])]),
    "dicts": lambda _: [OrderedDict(a=1), Counter("abca"), defaultdict(list, a=[1])],
    "numpy numbers": lambda _: [np.int64(1), np.float64(0.5), np.str_("a"), np.array([[1, None]], dtype=object)],
    "sets": lambda _: [{3, 1, 2}, frozenset("ab"), deque([1])],
    "a view": lambda _: torch.arange(10)[2:8:2],
}


@pytest.mark.parametrize("kind", ITEMS)
def test_an_item_equals_what_another_process_gets_of_it(kind: str, tmp_path: Path) -> None:
    item = ITEMS[kind](tmp_path)
    again = pickle.loads(pickle.dumps(item))
    assert value_of(item) == value_of(again)
    assert digest_of(item) == digest_of(again)
    assert value_of([item]) != value_of([item, item])
