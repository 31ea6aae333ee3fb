"""``load_from_rar``, on archives that this test writes: no free program does."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
import rarfile

from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node


def number(value: int) -> bytes:
    """A variable-length integer of the RAR 5.0 format."""
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def block(kind: int, flags: int, fields: bytes, data: bytes = b"") -> bytes:
    body = number(kind) + number(flags) + (number(len(data)) if flags & 2 else b"") + fields
    body = number(len(body)) + body
    return struct.pack("<I", zlib.crc32(body)) + body + data


def write_rar(path: Path, names: str) -> str:
    """RAR 5.0 as https://www.rarlab.com/technote.htm has it: files are stored, not compressed."""
    content = b"Rar!\x1a\x07\x01\x00" + block(1, 0, number(0))
    for name in names:
        data = f"{path.name}{name}".encode() * 500
        title = f"folder/{name}.txt".encode()
        fields = number(4) + number(len(data)) + number(0o644) + struct.pack("<I", zlib.crc32(data))
        content += block(2, 2, fields + number(0) + number(1) + number(len(title)) + title, data)
    path.write_bytes(content + block(5, 0, number(0)))
    return str(path)


@pytest.fixture
def archives(tmp_path: Path) -> list[str]:
    return [write_rar(tmp_path / f"{place}.rar", names) for place, names in enumerate(["abc", "", "de"])]


def test_L2_exact_resume(archives: list[str]) -> None:
    check_node(lambda: CountingSource(archives).open_files("b").load_from_rar(), pulls=lambda k: 3)


def test_files(archives: list[str]) -> None:
    pairs = list(IterableWrapper(archives).open_files("b").load_from_rar())
    assert [path for path, _ in pairs] == [
        f"{archives[place]}/folder/{name}.txt" for place, name in [(0, "a"), (0, "b"), (0, "c"), (2, "d"), (2, "e")]
    ]
    one, other = pairs[0][1], pairs[1][1]
    halves = [one.read(1000), other.read(1000), one.read(), other.read()]
    assert halves[0] + halves[2] == b"0.rara" * 500
    assert halves[1] + halves[3] == b"0.rarb" * 500


def test_an_archive_in_an_archive_is_refused(tmp_path: Path, archives: list[str]) -> None:
    with pytest.raises(ValueError, match="Nested RAR archive is not supported"):
        list(IterableWrapper(archives).open_files("b").load_from_rar().load_from_rar())


def test_L7_damage_is_an_error_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello" * 20)
    with pytest.raises(rarfile.Error) as caught:
        list(IterableWrapper([str(tmp_path / "text")]).open_files("b").load_from_rar())
    assert caught.value.__notes__ == [f"RarArchiveLoader: while opening {tmp_path / 'text'}"]


def test_length_and_a_missing_package(archives: list[str], monkeypatch: Any) -> None:
    assert len(IterableWrapper(archives).open_files("b").load_from_rar(length=5)) == 5
    monkeypatch.setitem(__import__("sys").modules, "rarfile", None)
    with pytest.raises(ImportError, match="pip install rarfile$"):
        IterableWrapper(archives).open_files("b").load_from_rar()
