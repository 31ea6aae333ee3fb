"""``read_lines``: the same lines from every place on, plain and compressed; a shard decodes its own alone."""

from __future__ import annotations

import bz2
import gzip
import warnings
from pathlib import Path

import pytest
import zstandard

from tests.reads import bytes_read_by
from torchpipe.errors import ReplayWarning, StateError
from torchpipe.formats.text import TextLines
from torchpipe.iter import IterableWrapper, PathList, TextLineReader
from torchpipe.node.datapipe import iterate
from torchpipe.state import decode, encode
from torchpipe.testing import check_node

TEXTS = ["a\nb\r\n\nd\n", "", "\ufeffe\u2028f\ng", "\n"]
LINES = ["a", "b", "", "d", "e\u2028f", "g", ""]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_bytes(text.encode())
    return tmp_path


def test_lines_come_without_their_ends(folder: Path) -> None:
    assert list(TextLineReader(folder / "?.txt")) == LINES
    assert list(PathList(str(folder / "*")).read_lines()) == LINES
    assert list(TextLineReader([folder / "0.txt", folder / "2.txt"], "latin-1"))[0] == "a"


def test_L2_exact_resume(folder: Path) -> None:
    check_node(lambda: TextLineReader(f"{folder}/*.txt"))


def test_L2_exact_resume_in_a_pipeline(folder: Path) -> None:
    check_node(
        lambda: PathList(str(folder / "*")).shuffle().read_lines().shuffle(buffer_size=3).sharding_filter(), epochs=[0]
    )


@pytest.mark.parametrize("ending", ["gz", "bz2", "zst"])
def test_L2_exact_resume_in_compressed_files(tmp_path: Path, ending: str) -> None:
    compress = {"gz": gzip.compress, "bz2": bz2.compress, "zst": zstandard.ZstdCompressor().compress}[ending]
    (tmp_path / f"a.{ending}").write_bytes(compress(b"a\nbb\nc") + compress(b"cc\nd\n"))
    (tmp_path / f"b.{ending}").write_bytes(compress(b"e\n"))
    assert list(TextLineReader(tmp_path / "*")) == ["a", "bb", "ccc", "d", "e"]
    check_node(lambda: TextLineReader(tmp_path / "*"), epochs=[0], num_shards=1)


def test_L1_a_shard_decodes_its_own_lines_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []
    real = TextLines._decoded
    monkeypatch.setattr(TextLines, "_decoded", lambda self, line: decoded.append(line) or real(self, line))
    node = TextLineReader(folder / "*.txt").sharding_filter()
    for shard in range(3):
        decoded.clear()
        assert list(iterate(node, shard=shard, num_shards=3)) == LINES[shard::3]
        assert len(decoded) == len(LINES[shard::3])
    check_node(lambda: TextLineReader(folder / "*.txt").sharding_filter(), epochs=[0], num_shards=3)


def test_L5_resuming_reads_no_more_the_further_on(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with open(path, "w") as file:
        file.writelines(f"{number:099}\n" for number in range(40_000))
    node = TextLineReader(path)
    iterator = iterate(node)
    costs = []
    for number in range(1, 38_001):
        next(iterator)
        if number % 12_000 == 2_000:
            state = decode(encode(iterator.state_dict()))
            again = iterate(node)
            again.load_state_dict(state)
            costs.append(bytes_read_by(lambda again=again, number=number: _expect(next(again), f"{number:099}")))
            again.close()
    iterator.close()
    assert len(costs) == 4
    assert max(costs) <= 600_000  # of 4 MB


def _expect(got: object, expected: object) -> None:
    assert got == expected


def test_L5_what_is_decompressed_again_is_announced(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"x" * (1 << 20) + b"\n", 1) * 3 + gzip.compress((b"y" * (1 << 20) + b"\n") * 70, 1))
    iterator = iterate(TextLineReader(path))
    for _ in range(70):
        next(iterator)
    state = iterator.state_dict()
    iterator.close()
    again = iterate(TextLineReader(path))
    with pytest.warns(ReplayWarning, match=r"compressed data in TextLineReader .* about 67 records .*recompress"):
        again.load_state_dict(state)
    assert next(again)[0] == "y"
    again.close()
    small = iterate(IterableWrapper([str(path)]).read_lines())
    next(small)
    again = iterate(IterableWrapper([str(path)]).read_lines())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.load_state_dict(small.state_dict())
    small.close()
    again.close()


def test_L6_files_are_closed_with_the_pass(folder: Path) -> None:
    iterator = iterate(TextLineReader(folder / "0.txt"))
    next(iterator)
    file = iterator._opened.content.stream  # type: ignore[attr-defined]
    iterator.close()
    assert file.closed


def test_L7_what_cannot_be_decoded_names_file_line_and_byte(folder: Path) -> None:
    (folder / "4.txt").write_bytes(b"good\nb\xe4d\nnever\n")
    iterator = iterate(TextLineReader(folder / "*.txt"))
    with pytest.raises(UnicodeDecodeError, match="can't decode byte 0xe4 in position 1") as caught:
        list(iterator)
    assert caught.value.__notes__ == [f"TextLineReader: while reading {folder / '4.txt'}, line 2 (byte 5)"]
    (folder / "5.txt.gz").write_bytes(gzip.compress(b"a\n" * 999)[:-1])
    with pytest.raises(EOFError, match=r"5\.txt\.gz is cut off") as cut:
        list(TextLineReader(folder / "5.txt.gz"))
    assert "5.txt.gz, line" in cut.value.__notes__[0]


def test_wrong_paths_are_refused() -> None:
    with pytest.raises(FileNotFoundError, match="read_lines found no file 'missing'"):
        TextLineReader("missing")
    with pytest.raises(
        TypeError, match="read_lines needs paths, or pieces of files as .* make them, got 3 of type int"
    ):
        list(IterableWrapper([3]).read_lines())


def test_L3_a_file_that_has_changed_is_refused(folder: Path) -> None:
    iterator = iterate(TextLineReader(folder / "0.txt"))
    next(iterator)
    state = iterator.state_dict()
    iterator.close()
    (folder / "0.txt").write_text("shorter\n")
    again = iterate(TextLineReader(folder / "0.txt"))
    again.load_state_dict(state)
    with pytest.raises(StateError, match=r"0\.txt has changed since the state was saved: it had 8 bytes, and has 8|9"):
        (folder / "0.txt").write_text("shorter!\n")
        next(again)
    again.close()


def test_L8_forged_states_are_refused(folder: Path) -> None:
    iterator = iterate(TextLineReader(folder / "0.txt"))
    next(iterator)
    good = iterator.state_dict()
    iterator.close()
    wrong = [
        {"at": [99], "line": 1},
        {"at": [2], "line": -1},
        {"at": 2, "line": 1},
        {"line": 1},
        None,
        {"at": ["2"], "line": 1},
    ]
    for place in wrong:
        again = iterate(TextLineReader(folder / "0.txt"))
        with pytest.raises(StateError):
            again.load_state_dict({**good, "iterator": {**good["iterator"], "place": place}})
            next(again)
        again.close()
    for behind in (None, [1], ["a", "b"], 3):
        again = iterate(TextLineReader(folder / "0.txt"))
        with pytest.raises(StateError):
            again.load_state_dict({**good, "iterator": {**good["iterator"], "behind": behind}})
        again.close()
