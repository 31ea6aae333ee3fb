"""``read_csv``: rows by name; quoted fields over several lines; every kind of broken row is named by its place."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import pytest

from torchpipe.errors import StateError
from torchpipe.iter import CsvReader, PathList
from torchpipe.node.datapipe import iterate
from torchpipe.testing import check_node

FIRST = 'id,text,"n, o"\r\n1,"two\nlines, and ""quotes""",x\r\n\r\n2,b,\r\n'
SECOND = 'id,text,"n, o"\n3,c,z'
ROWS = [
    {"id": "1", "text": 'two\nlines, and "quotes"', "n, o": "x"},
    {"id": "2", "text": "b", "n, o": ""},
    {"id": "3", "text": "c", "n, o": "z"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "0.csv").write_bytes(b"\xef\xbb\xbf" + FIRST.encode())
    (tmp_path / "1.csv.gz").write_bytes(gzip.compress(SECOND.encode()))
    return tmp_path


def test_rows_are_dicts_by_the_header(folder: Path) -> None:
    assert list(CsvReader(folder / "*")) == ROWS
    assert list(PathList(str(folder / "*")).read_csv(["text", "id"])) == [
        {"text": row["text"], "id": row["id"]} for row in ROWS
    ]
    assert list(CsvReader(folder / "1.csv.gz", header=False)) == [["id", "text", "n, o"], ["3", "c", "z"]]
    (folder / "2.tsv").write_text("a\tb\n1\t2\n")
    assert list(CsvReader(folder / "2.tsv", delimiter="\t")) == [{"a": "1", "b": "2"}]


def test_L2_exact_resume(folder: Path) -> None:
    check_node(lambda: CsvReader(folder / "*"))
    check_node(lambda: CsvReader(folder / "*", header=False).sharding_filter(), epochs=[0], num_shards=3)


@pytest.mark.parametrize(
    ("text", "error", "message", "place"),
    [
        ("a,b\n1,2\n3\n", ValueError, r"a row of 1 fields, where there are 2 columns: \['3'\]", "line 3 (byte 8)"),
        ("a,b\n1,2\n3,4,5\n", ValueError, "a row of 3 fields", "line 3 (byte 8)"),
        ('a,b\n1,"2\n3,4\n', csv.Error, "unexpected end of data", "line 2 (byte 4)"),
        ('a,b\n1,"2"x\n', csv.Error, "expected after", "line 2 (byte 4)"),
    ],
)
def test_L7_a_broken_row_names_file_line_and_byte(
    tmp_path: Path, text: str, error: type[Exception], message: str, place: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(error, match=message) as caught:
        list(CsvReader(path))
    assert caught.value.__notes__ == [f"CsvReader: while reading {path}, {place}"]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("a,b\n", ["c"], "a.csv has no column 'c': its columns are a, b"),
        ("", None, "a.csv is empty: it should begin with a line of column names"),
        ("a,a\n", None, "a.csv names a column twice"),
    ],
)
def test_L7_a_header_that_does_not_fit_names_the_file(tmp_path: Path, text: str, columns: Any, message: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        list(CsvReader(tmp_path / "a.csv", columns))


def test_a_state_of_another_table_is_refused(folder: Path) -> None:
    iterator = iterate(CsvReader(folder / "0.csv"))
    next(iterator)
    state = iterator.state_dict()
    iterator.close()
    for width in (2, -1, "x", None):
        again = iterate(CsvReader(folder / "0.csv"))
        state["iterator"]["place"]["width"] = width
        again.load_state_dict(state)
        with pytest.raises(StateError, match=r"0\.csv had .* columns when the state was saved, not 3"):
            next(again)
        again.close()


def test_a_field_may_be_long(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"id,text\n1,{'x' * 1_000_000}\n2,y\n")
    assert [len(row["text"]) for row in CsvReader(tmp_path / "a.csv")] == [1_000_000, 1]
