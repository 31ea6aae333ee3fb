"""``load_from_zip``."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.testing import CountingSource, check_node


def write_zip(path: Path, names: str) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("folder")
        for name in names:
            archive.writestr(f"folder/{name}.txt", f"{path.name}{name}" * 500)
    return str(path)


@pytest.fixture
def archives(tmp_path: Path) -> list[str]:
    return [write_zip(tmp_path / f"{number}.zip", names) for number, names in enumerate(["abc", "", "de"])]


def test_L2_exact_resume(archives: list[str]) -> None:
    check_node(lambda: CountingSource(archives).open_files("b").load_from_zip(), pulls=lambda k: 3)
    check_node(lambda: CountingSource(archives).open_files("b").decompress().load_from_zip(), pulls=lambda k: 3)


def test_files(archives: list[str]) -> None:
    pairs = list(IterableWrapper(archives).open_files("b").load_from_zip())
    assert [path for path, _ in pairs] == [
        f"{archives[number]}/folder/{name}.txt" for number, name in [(0, "a"), (0, "b"), (0, "c"), (2, "d"), (2, "e")]
    ]
    one, other = pairs[0][1], pairs[1][1]
    halves = [one.read(1000), other.read(1000), one.read(), other.read()]  # two at a time out of one file
    assert halves[0] + halves[2] == b"0.zipa" * 500
    assert halves[1] + halves[3] == b"0.zipb" * 500


def test_L6_the_archive_is_closed_with_its_last_file(archives: list[str]) -> None:
    opened: list[Any] = []
    node = IterableWrapper(archives[:1]).open_files("b").map(lambda pair: opened.append(pair[1]) or pair)
    items = list(node.load_from_zip())
    assert not opened[0].closed
    for _, stream in items:
        stream.close()
    assert opened[0].closed


def test_L7_damage_is_an_error_with_the_path(archives: list[str], tmp_path: Path) -> None:
    content = Path(archives[0]).read_bytes()
    for name, damaged in {"cut": content[:-30], "text": b"hello", "empty": b""}.items():
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(zipfile.BadZipFile) as caught:
            list(IterableWrapper([str(tmp_path / name)]).open_files("b").load_from_zip())
        assert caught.value.__notes__ == [f"ZipArchiveLoader: while opening {tmp_path / name}"]
    flipped = bytearray(content)
    start = flipped.index(b"folder/a.txt") + 40
    flipped[start] ^= 0xFF
    (tmp_path / "flipped").write_bytes(bytes(flipped))
    with pytest.raises((zipfile.BadZipFile, zipfile.zlib.error)):  # type: ignore[attr-defined]
        for _, stream in IterableWrapper([str(tmp_path / "flipped")]).open_files("b").load_from_zip():
            stream.read()


def test_L8_a_forged_index_is_refused(archives: list[str]) -> None:
    node = IterableWrapper(archives).open_files("b").load_from_zip()
    iterator = iterate(node)
    next(iterator)
    state = iterator.state_dict()
    state["iterator"]["place"]["file"] = 4
    resumed = iterate(node)
    resumed.load_state_dict(state)
    with pytest.raises(StateError, match="has 3 files, and the state names number 4"):
        next(resumed)


def test_length_and_wrong_items(archives: list[str]) -> None:
    pairs = IterableWrapper(archives).open_files("b")
    assert len(pairs.load_from_zip(length=5)) == 5
    with pytest.raises(TypeError, match="pass length="):
        len(pairs.load_from_zip())
    with pytest.raises(TypeError, match="load_from_zip needs"):
        list(IterableWrapper(["x.zip"]).load_from_zip())  # type: ignore[misc]

    class Pipe(io.RawIOBase):
        def readable(self) -> bool:
            return True

    with pytest.raises(ValueError, match="can seek"):
        list(IterableWrapper([("x", Pipe())], deepcopy=False).load_from_zip())
