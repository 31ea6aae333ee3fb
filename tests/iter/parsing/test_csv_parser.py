"""``parse_csv`` and ``parse_csv_as_dict``."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.testing import CountingSource, check_node

TABLES = {"a": 'key,item\na,"1\n1"\n\nb,2', "b": "", "c": "key,other\n\u00e4,3\n", "d": "\n"}


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    for name, text in TABLES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return [str(tmp_path / name) for name in TABLES]


@pytest.mark.parametrize("mode", ["r", "b"])
def test_L2_exact_resume(paths: list[str], mode: str) -> None:
    check_node(lambda: CountingSource(paths).open_files(mode).parse_csv(return_path=True), pulls=lambda k: 4)
    check_node(lambda: CountingSource(paths).open_files(mode).parse_csv_as_dict(), pulls=lambda k: 3)
    check_node(lambda: CountingSource(paths).open_files(mode).parse_csv(skip_lines=1, as_tuple=True), pulls=lambda k: 4)


def test_rows(paths: list[str]) -> None:
    pairs = IterableWrapper(paths).open_files("b")
    rows = [["key", "item"], ["a", "1\n1"], [], ["b", "2"], ["key", "other"], ["\u00e4", "3"], []]
    assert list(pairs.parse_csv()) == rows
    assert list(pairs.parse_csv(as_tuple=True)) == [tuple(row) for row in rows]
    assert list(pairs.parse_csv(return_path=True))[0] == (paths[0], rows[0])
    assert list(pairs.parse_csv(encoding="ascii"))[5] == ["", "3"]
    assert list(pairs.parse_csv(delimiter=";"))[0] == ["key,item"]


def test_dicts(paths: list[str]) -> None:
    pairs = IterableWrapper(paths).open_files()
    expected = [{"key": "a", "item": "1\n1"}, {"key": "b", "item": "2"}, {"key": "\u00e4", "other": "3"}]
    assert list(pairs.parse_csv_as_dict()) == expected
    assert list(pairs.parse_csv_as_dict(return_path=True))[2] == (paths[2], expected[2])
    assert list(pairs.parse_csv_as_dict(fieldnames=["x"], restkey="rest"))[0] == {"x": "key", "rest": ["item"]}


def test_L7_errors_name_the_path(paths: list[str]) -> None:
    with pytest.raises(csv.Error) as caught:
        list(IterableWrapper(paths).open_files("b").parse_csv(decode=False))
    assert caught.value.__notes__ == [f"CSVParser: while reading {paths[0]}, line 1 (byte 0)"]
    with pytest.raises(UnicodeDecodeError) as undecoded:
        list(IterableWrapper(paths).open_files("b").parse_csv(encoding="ascii", errors="strict"))
    assert undecoded.value.__notes__ == [f"CSVParser: while reading {paths[2]}, line 2 (byte 10)"]


@pytest.mark.parametrize("names", [3, ["a", {}]])
def test_L8_forged_columns_are_refused(paths: list[str], names: Any) -> None:
    node = IterableWrapper(paths).open_files().parse_csv_as_dict()
    iterator = iterate(node)
    next(iterator)
    state = iterator.state_dict()
    state["iterator"]["place"]["fieldnames"] = names
    resumed = iterate(node)
    resumed.load_state_dict(state)
    with pytest.raises(StateError, match="columns of"):
        next(resumed)
