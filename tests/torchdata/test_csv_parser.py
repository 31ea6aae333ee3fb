"""``parse_csv`` and ``parse_csv_as_dict``."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.state import left_out
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
    assert list(pairs.parse_csv(encoding="ascii", strict=False))[5] == ["", "3"]
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
        list(IterableWrapper(paths).open_files("b").parse_csv(encoding="ascii"))
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


def of_text(folder: Path, text: bytes, mode: str = "b") -> Any:
    (folder / "x.csv").write_bytes(text)
    return IterableWrapper([str(folder / "x.csv")]).open_files(mode)


WRONG = {
    "quote": (b'a,b\n1,"2\n3,4\n', csv.Error, "unexpected end"),
    "quote in a field": (b'a,b\n1,"2" 3\n', csv.Error, "expected after"),
    "short": (b"a,b\n1\n3,4\n", ValueError, "a row of 1 fields, where there are 2 columns: \\['1'\\].*strict=False"),
    "long": (b"a,b\n1,2,3\n", ValueError, "a row of 3 fields, where there are 2 columns: \\['1', '2', '3'\\]"),
    "latin-1": (b"a,b\n1,Andr\xe9\n", UnicodeDecodeError, "0xe9"),
}


@pytest.mark.parametrize("mode", ["r", "b"])
@pytest.mark.parametrize("form", ["parse_csv", "parse_csv_as_dict"])
@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_an_error_unless_it_is_not_strict(tmp_path: Path, kind: str, form: str, mode: str) -> None:
    text, error, message = WRONG[kind]
    opened = of_text(tmp_path, text, mode)
    with pytest.raises(error, match=message) as caught:
        list(getattr(opened, form)())
    assert any(f"{tmp_path / 'x.csv'}" in note for note in caught.value.__notes__)
    if kind != "latin-1" or mode == "b":  # a stream of text decodes by itself
        lax = csv.reader if form == "parse_csv" else csv.DictReader
        expected = list(lax(io.StringIO(text.decode("utf-8", "ignore"))))
        assert list(getattr(opened, form)(strict=False)) == expected


@pytest.mark.parametrize("mode", ["r", "b"])
def test_a_byte_order_mark_and_line_ends_within_quotes(tmp_path: Path, mode: str) -> None:
    opened = of_text(tmp_path, b'\xef\xbb\xbfid,text\r\n1,"a\r\nb\rc"\r\n"\xef\xbb\xbf2\n\xef\xbb\xbf",d\r\n', mode)
    rows = [["id", "text"], ["1", "a\r\nb\rc"], ["\ufeff2\n\ufeff", "d"]]
    assert list(opened.parse_csv()) == rows
    assert list(opened.parse_csv_as_dict()) == [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    assert next(iter(opened.parse_csv(strict=False)))[0] == "\ufeffid"
    check_node(lambda: opened.parse_csv_as_dict())
    begun = opened.map(lambda pair: (pair[0], (pair[1].readline(), pair[1])[1]))  # has read ahead
    assert list(begun.parse_csv()) == rows[1:]


@pytest.mark.parametrize("mode", ["r", "b"])
def test_L2_rows_of_wrong_length_go_alone_at_every_position(tmp_path: Path, mode: str) -> None:
    def build(form: str = "parse_csv") -> Any:
        return getattr(of_text(tmp_path, b'a,b\n1\n"3\n",4\n\n5,6,7\n8,9\n10\n', mode), form)().on_error("skip")

    assert list(build()) == [["a", "b"], ["3\n", "4"], [], ["8", "9"]]
    assert list(build("parse_csv_as_dict")) == [{"a": "3\n", "b": "4"}, {"a": "8", "b": "9"}]
    check_node(build, epochs=[0], num_shards=1)
    check_node(lambda: build("parse_csv_as_dict"), epochs=[0], num_shards=1)
    iterator = iterate(build())
    assert len(list(iterator)) == 4
    assert left_out(iterator.state_dict())[0] == 3


def test_a_row_that_is_no_text_goes_alone(tmp_path: Path) -> None:
    opened = of_text(tmp_path, b'a,b\n1,"\xff\nx"\n2,3\n\xff,\n4,5\n')
    assert list(opened.parse_csv().on_error("skip")) == [["a", "b"], ["2", "3"], ["4", "5"]]
    assert list(opened.parse_csv(errors="replace", skip_lines=4)) == [["\ufffd", ""], ["4", "5"]]


def test_an_open_quote_takes_the_rest_and_says_so(tmp_path: Path) -> None:
    iterator = iterate(of_text(tmp_path, b'a,b\n1,"2\n3,4\n5,6\n').parse_csv().on_error("skip"))
    assert list(iterator) == [["a", "b"]]
    assert "line 2 (byte 4) and what is behind it" in left_out(iterator.state_dict())[1][0].item


def test_columns_of_dicts(tmp_path: Path) -> None:
    opened = of_text(tmp_path, b"a,a\n1\n1,2,3\n")
    with pytest.raises(ValueError, match="names a column twice.*fieldnames"):
        list(opened.parse_csv_as_dict())
    named = opened.parse_csv_as_dict(fieldnames=["a", "b"], skip_lines=1, restkey="more", restval="")
    assert list(named) == [{"a": "1", "b": ""}, {"a": "1", "b": "2", "more": ["3"]}]
    with pytest.raises(ValueError, match="a row of 3 fields, where there are 2 columns: "):
        list(opened.parse_csv_as_dict(fieldnames=["a", "b"], restval=""))
