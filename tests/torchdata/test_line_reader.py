"""``readlines``: what lines become, going to a place, files that cannot seek."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import pytest

from torchpipe.errors import ReplayWarning, StateError
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.testing import CountingSource, check_node


class Pipe(io.RawIOBase):
    """Can be read forwards only."""

    def __init__(self, content: bytes) -> None:
        self.content = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self.content.readinto(buffer)


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    for name, text in {"a": "1\n\r\n\u00e43\r\n", "b": "", "c": "no newline"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    return [str(tmp_path / name) for name in "abc"]


@pytest.mark.parametrize("mode", ["r", "b"])
def test_L2_exact_resume(paths: list[str], mode: str) -> None:
    check_node(lambda: CountingSource(paths).open_files(mode).readlines(skip_lines=1), pulls=lambda k: 3)
    check_node(lambda: CountingSource(paths).shuffle().open_files(mode).readlines(), pulls=lambda k: 3)


def test_L2_exact_resume_where_a_stream_cannot_seek() -> None:
    def make() -> Any:
        items = [("x", b"1\n2\n3\n"), ("y", b"4\n")]
        return CountingSource(items).map(lambda item: (item[0], Pipe(item[1]))).readlines(skip_lines=1)

    check_node(make, pulls=lambda k: 2)
    iterator = iterate(make())
    next(iterator)
    with pytest.warns(ReplayWarning, match="first 1 items"):
        iterate(make()).load_state_dict(iterator.state_dict())


def test_L5_a_resume_does_not_read_what_was_read_before(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(20_000)))
    node = IterableWrapper([str(path)]).open_files("b").readlines(return_path=False)
    iterator = iterate(node)
    iterator.drop(19_990)
    read: list[int] = []

    class Counting(io.FileIO):
        def readinto(self, buffer: Any) -> Any:
            read.append(len(buffer))
            return super().readinto(buffer)

    counted = IterableWrapper([("x", None)]).map(lambda _: (str(path), io.BufferedReader(Counting(path), 512)))
    resumed = iterate(counted.readlines(return_path=False))
    resumed.load_state_dict(iterator.state_dict() | {"inputs": [{"inputs": [{"position": 0}]}]})
    assert list(resumed) == list(iterator) == [b"%d" % number for number in range(19_990, 20_000)]
    assert sum(read) < 4096


@pytest.mark.parametrize(
    ("mode", "arguments", "expected"),
    [
        ("r", {}, ["1", "", "\u00e43", "no newline"]),
        ("b", {}, [b"1", b"", "\u00e43".encode(), b"no newline"]),
        ("b", {"decode": True}, ["1", "", "\u00e43", "no newline"]),
        ("b", {"decode": True, "encoding": "ascii", "strict": False}, ["1", "", "3", "no newline"]),
        ("b", {"strip_newline": False}, [b"1\n", b"\r\n", "\u00e43\r\n".encode(), b"no newline"]),
        ("b", {"skip_lines": 2}, ["\u00e43".encode()]),
        ("b", {"skip_lines": 9}, []),
    ],
)
def test_lines(paths: list[str], mode: str, arguments: Any, expected: list[Any]) -> None:
    node = IterableWrapper(paths).open_files(mode)
    assert list(node.readlines(return_path=False, **arguments)) == expected
    assert [line for _, line in node.readlines(**arguments)] == expected


@pytest.mark.parametrize(("mode", "decode"), [("r", False), ("b", True), ("b", False)])
def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path, mode: str, decode: bool) -> None:
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n")
    opened = IterableWrapper([str(tmp_path / "x")]).open_files(mode)
    lines = list(opened.readlines(return_path=False, decode=decode))
    kept = list(opened.readlines(return_path=False, decode=decode, strict=False))
    assert kept == ["\ufeffa", "\ufeffb"] if mode == "r" or decode else [b"\xef\xbb\xbfa", b"\xef\xbb\xbfb"]
    assert lines == (["a", "\ufeffb"] if mode == "r" or decode else kept)


def test_paths_come_with_the_lines_of_compressed_files_too(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"1\n2\n"))
    pairs = IterableWrapper([str(path)]).map(lambda name: (name, gzip.open(name)))
    assert list(pairs.readlines()) == [(str(path), b"1"), (str(path), b"2")]
    check_node(lambda: CountingSource([str(path)]).map(lambda name: (name, gzip.open(name))).readlines())


def test_L6_files_are_closed_at_their_end(paths: list[str]) -> None:
    opened: list[Any] = []
    node = IterableWrapper(paths).open_files().map(lambda pair: opened.append(pair[1]) or pair)
    for _ in node.readlines():
        pass
    assert [stream.closed for stream in opened] == [True, True, True]


def test_L7_damage_is_an_error_with_the_path(tmp_path: Path, paths: list[str]) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(bytes(range(256)) * 400)[:-20])
    with pytest.raises(EOFError) as caught:
        list(IterableWrapper([str(path)]).map(lambda name: (name, gzip.open(name))).readlines())
    assert caught.value.__notes__ == [f"LineReader: while reading {path}, line 392 (byte 99851)"]
    with pytest.raises(UnicodeDecodeError) as undecoded:
        list(IterableWrapper(paths).open_files("b").readlines(decode=True, encoding="ascii"))
    assert undecoded.value.__notes__ == [f"LineReader: while reading {paths[0]}, line 3 (byte 4)"]


def test_L8_a_forged_place_is_refused(paths: list[str]) -> None:
    node = IterableWrapper(paths).open_files().readlines()
    iterator = iterate(node)
    next(iterator)
    for place in ([-1], [1 << 400], ["1"], [1 << 200], [1, 2], 1):
        state = iterator.state_dict()
        state["iterator"]["place"]["at"] = place
        resumed = iterate(node)
        resumed.load_state_dict(state)
        with pytest.raises(StateError, match="place"):
            next(resumed)


def test_wrong_items_are_errors() -> None:
    for item in ("text", ("x", "text"), (1, io.StringIO())):
        with pytest.raises(TypeError, match="readlines needs"):
            list(IterableWrapper([item], deepcopy=False).readlines())  # type: ignore[misc]
