"""``load_from_bz2``, ``load_from_xz``, ``decompress`` and ``extract``."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from torchpipe.iter import Bz2FileLoader, Decompressor, Extractor, IterableWrapper, XzFileLoader
from torchpipe.testing import CountingSource, check_node

CONTENT = [f"line {number}\n".encode() * 900 for number in range(3)]
WRITERS: dict[str, Any] = {
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for ending, write in WRITERS.items():
        for number, content in enumerate(CONTENT):
            path = tmp_path / f"bz{number}.x{ending}"
            path.write_bytes(write(content))
            found.setdefault(ending, []).append(str(path))
    return found


@pytest.mark.parametrize(("ending", "kind"), [(".bz2", Bz2FileLoader), (".xz", XzFileLoader)])
def test_single_files(paths: dict[str, list[str]], ending: str, kind: Any) -> None:
    node = kind(IterableWrapper(paths[ending]).open_files("b"))
    assert [(path, stream.read()) for path, stream in node] == [
        (path.removesuffix(ending), content) for path, content in zip(paths[ending], CONTENT)
    ]
    assert (len(node), len(kind(node.source, length=5))) == (3, 5)
    check_node(lambda: kind(CountingSource(paths[ending]).open_files("b")))
    check_node(lambda: kind(CountingSource(paths[ending]).open_files("b")).readlines(), positions=5, pulls=lambda k: 3)
    with pytest.raises(TypeError, match=r"load_from_\w+ needs"):
        list(kind(IterableWrapper(["x"])))


@pytest.mark.parametrize("ending", list(WRITERS))
def test_decompress(paths: dict[str, list[str]], ending: str) -> None:
    pairs = IterableWrapper(paths[ending]).open_files("b")
    assert [(path, stream.read()) for path, stream in pairs.decompress()] == list(zip(paths[ending], CONTENT))
    check_node(lambda: CountingSource(paths[ending]).open_files("b").extract())
    assert type(Extractor(pairs)) is Decompressor
    renamed = pairs.map(lambda pair: ("no ending", pair[1]))
    kind = {".gz": "GZip", ".xz": "lzma", ".bz2": Decompressor.types.BZIP2, ".zst": "zstd"}[ending]
    assert [stream.read() for _, stream in renamed.decompress(kind)] == CONTENT
    with pytest.raises(RuntimeError, match="pass file_type="):
        list(renamed.decompress())


def test_archives_come_open(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.b.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("x")
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("x", b"abc")
    pairs = IterableWrapper([str(tmp_path / "a.b.tar.gz"), str(tmp_path / "a.zip")]).open_files("b")
    tar, unpacked = [stream for _, stream in pairs.decompress()]
    assert (tar.extractfile("x").read(), unpacked.read("x")) == (b"abc", b"abc")
    loaded = IterableWrapper([str(tmp_path / "a.b.tar.gz")]).open_files("b").decompress().load_from_tar()
    assert [stream.read() for _, stream in loaded] == [b"abc"]


def test_L6_a_file_is_closed_with_the_stream_made_of_it(paths: dict[str, list[str]]) -> None:
    opened: list[Any] = []
    node = IterableWrapper(paths[".gz"]).open_files("b").map(lambda pair: opened.append(pair[1]) or pair)
    for _, stream in node.decompress():
        assert not opened[-1].closed
        stream.close()
        assert opened[-1].closed


def test_L7_what_is_no_archive_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_text("hello")
    with pytest.raises(tarfile.ReadError) as caught:
        list(IterableWrapper([str(tmp_path / "x.tar")]).open_files("b").decompress())
    assert caught.value.__notes__ == [f"while opening {tmp_path / 'x.tar'}"]


def test_a_missing_package_is_named(monkeypatch: Any, paths: dict[str, list[str]]) -> None:
    pairs = IterableWrapper(paths[".zst"]).open_files("b")
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(ImportError, match="pip install zstandard"):
        list(pairs.decompress())
