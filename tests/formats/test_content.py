"""Compressed files: content and places are exact, members are gone to at once, damage is never taken for an end."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.reads import bytes_read_by
from torchpipe.errors import StateError
from torchpipe.formats.storage.content import Content, recompress

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    ".txt": bytes,
}
PART = b"".join(b"%07d\n" % number for number in range(6_000))  # 48 kB


def written(path: Path, parts: list[bytes], between: bytes = b"") -> Content:
    compress = COMPRESS[path.suffix]
    path.write_bytes(between.join(map(compress, parts)) + between)
    return Content(str(path))


@pytest.mark.parametrize("ending", COMPRESS)
def test_places_are_gone_to_exactly(ending: str, tmp_path: Path) -> None:
    whole = PART * 12
    path = tmp_path / f"a{ending}"
    content = written(path, [PART] * 7 + [b""] + [PART] * 5)
    marks = []
    place = 0
    while True:
        marks.append((place, content.mark(place)))
        read = content.stream.read(7_001)
        place += len(read)
        if not read:
            break
    content.close()
    content.close()
    assert place == len(whole)
    for place, mark in marks[::9] + marks[-1:]:
        again = Content(str(path))
        again.go_to(mark)
        assert again.stream.read() == whole[place:], (place, mark)
        assert content.kind is None or place - mark[2] <= len(PART)  # no more than a member before it
        again.close()


@pytest.mark.parametrize(
    ("ending", "between"), [(".gz", b"\0" * 700), (".xz", b"\0" * 8), (".zst", b"\x50\x2a\x4d\x18\x03\0\0\0abc")]
)
def test_what_may_stand_between_members_is_passed_over(ending: str, between: bytes, tmp_path: Path) -> None:
    content = written(tmp_path / f"a{ending}", [PART] * 3, between)
    assert content.stream.read() == PART * 3
    content.close()


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_L5_resuming_within_members_reads_no_more_the_further_on(ending: str, tmp_path: Path) -> None:
    import random

    whole = random.Random(0).randbytes(3_000_000)  # cannot be made smaller
    source, target = tmp_path / "a.txt", tmp_path / f"b{ending}"
    source.write_bytes(whole)
    recompress(str(source), str(target), member_bytes=200_000)
    content = Content(str(target))
    costs, before = [], 0
    for place in (300_000, 1_500_000, 2_700_000):
        content.stream.read(place - before)
        before, mark = place, content.mark(place)
        again = Content(str(target))

        def go(again: Content = again, mark: list[int] = mark, place: int = place) -> None:
            again.go_to(mark)
            assert again.stream.read(100) == whole[place : place + 100]

        costs.append(bytes_read_by(go))
        again.close()
    content.close()
    assert max(costs) < 1_000_000
    assert max(costs) - min(costs) < 300_000  # buffers end where they end


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
def test_L7_damage_is_an_error_that_names_the_file(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{ending}"
    written(path, [PART] * 2).close()
    data = path.read_bytes()
    for cut in (len(data) - 1, len(data) // 2 + 3, 10):
        path.write_bytes(data[:cut])
        content = Content(str(path))
        with pytest.raises(EOFError, match=rf"a{ending} is cut off: .* at byte {cut}"):
            content.stream.read()
        content.close()
    for wrong in (b"\xff" * 40, data[:60] + b"\xff" * 40 + data[100:], data + b"garbage!" * 4):
        path.write_bytes(wrong)
        content = Content(str(path))
        with pytest.raises((ValueError, EOFError), match=rf"a{ending} is (damaged|cut off)"):
            content.stream.read()
        content.close()
    path.write_bytes(b"")
    content = Content(str(path))
    with pytest.raises(EOFError, match="is empty, and so no"):
        content.stream.read()
    content.close()


@pytest.mark.parametrize("ending", [".gz", ".txt"])
def test_L8_forged_places_are_refused(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{ending}"
    written(path, [PART]).close()
    places: list[Any] = [
        [1 << 60],
        [-1],
        ["a"],
        [None],
        [True],
        [],
        [0, 1],
        [1 << 40, 0, 0],
        [5, 0, 9],
        [9, 3, 0],
        [0, 0, 1],
    ]
    places += [[len(PART) + 1, 0, 0], [1 << 62, 1 << 62, 1 << 62]]
    for place in places:
        content = Content(str(path))
        with pytest.raises(StateError, match="a\\.(gz|txt)"):
            content.go_to(place)
        content.close()


def test_urls_are_opened_by_fsspec() -> None:
    import fsspec

    with fsspec.open("memory://torchpipe-content/a.gz", "wb") as file:
        file.write(gzip.compress(PART) * 3)
    content = Content("memory://torchpipe-content/a.gz")
    content.stream.read(len(PART) + 80)
    mark = content.mark(len(PART) + 80)
    assert mark[1] > 0
    again = Content("memory://torchpipe-content/a.gz")
    again.go_to(mark)
    assert again.stream.read() == (PART * 2)[80:]


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "a.zst").write_bytes(b"x")
    with pytest.raises(ImportError, match="pip install zstandard$"):
        Content(str(tmp_path / "a.zst"))


def test_an_interrupted_recompression_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "a.gz"
    source.write_bytes(gzip.compress(PART)[:-9])
    with pytest.raises(EOFError):
        recompress(str(source), str(tmp_path / "b.gz"), member_bytes=1000)
    assert [path.name for path in tmp_path.iterdir()] == ["a.gz"]
