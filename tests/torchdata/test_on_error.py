"""``on_error("skip")`` behind readers of open streams, and samples of files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from torchpipe.errors import StateError
from torchpipe.formats import text
from torchpipe.iter import (
    IterableWrapper,
)
from torchpipe.node.datapipe import iterate
from torchpipe.state import left_out
from torchpipe.testing import check_node


def test_files_that_cannot_be_opened_or_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b.tar").write_bytes(b"no archive at all")
    paths = [str(tmp_path / name) for name in ("none", "a", "b.tar")]
    opened = IterableWrapper(paths).open_files("b").on_error("skip")
    assert [path for path, _ in opened] == paths[1:]
    iterator = iterate(IterableWrapper(paths).open_files("b").load_from_tar().on_error("skip"))
    assert list(iterator) == []
    count, noted = left_out(iterator.state_dict())
    assert count == 3
    assert [entry.node.partition("(")[0] for entry in noted] == ["FileOpener", "TarArchiveLoader", "TarArchiveLoader"]
    assert paths[0] in noted[0].item


def test_one_exception_that_is_raised_again_stands_for_each_file() -> None:
    kept = ValueError("kept")  # as a future gives it each time

    def no_odds(item: int) -> int:
        if item % 2:
            raise kept
        return item

    files = [(f"{number}.{ending}", number) for number in range(4) for ending in ("txt", "cls")]
    read = IterableWrapper(files).map(lambda file: (file[0], no_odds(file[1]))).webdataset().on_error("skip")
    assert [sample["__key__"] for sample in read] == ["0", "2"]


def test_L2_a_wrong_record_of_an_open_stream_goes_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        lines = [b"one", b"tw\xff", b"three", b"fo\xffr", name.encode()]
        (tmp_path / name).write_bytes(b"\n".join(lines) + b"\n")
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]

    def build() -> Any:
        opened = IterableWrapper(paths).open_files("b")
        return opened.readlines(decode=True, errors="strict", return_path=False).on_error("skip")

    iterator = iterate(build())
    assert list(iterator) == ["one", "three", "a", "one", "three", "b"]
    count, noted = left_out(iterator.state_dict())
    assert count == 4
    assert f"{paths[0]}, line 2 (byte 4)" in noted[0].item
    check_node(build, epochs=[0], num_shards=1)


def test_the_rest_of_an_open_stream_is_told_as_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = csv.field_size_limit(1 << 17)
    monkeypatch.setattr(text, "_FIELD_CHARACTERS", 1 << 17)
    (tmp_path / "a.csv").write_text("a\n" + "x" * 140_000 + "\n" + "b\n" * 9)
    iterator = iterate(IterableWrapper([str(tmp_path / "a.csv")]).open_files("b").parse_csv().on_error("skip"))
    assert list(iterator) == [["a"]]
    csv.field_size_limit(before)
    assert "line 2 (byte 2) and what is behind it" in left_out(iterator.state_dict())[1][0].item


def test_a_stream_of_text_does_not_lose_a_good_row_with_a_wrong_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a\nb\n"c"x\nd\ne\n')
    opened = IterableWrapper([str(tmp_path / "a.csv")]).open_files("r").parse_csv(strict=True)
    iterator = iterate(opened.on_error("skip"))
    assert list(iterator) == [["a"], ["b"]]  # where the wrong one ends nobody can tell
    assert left_out(iterator.state_dict())[1][0].item.endswith("line 3 and what is behind it'")
    failing = iterate(opened)
    with pytest.raises(Exception, match="expected after"):
        list(failing)
    with pytest.raises(StateError, match=r"a.csv is read as a stream of text, .* open_files\('rb'\)"):
        failing.state_dict()
