"""``list_files_by_fsspec``, ``open_files_by_fsspec``, ``save_by_fsspec``: local and in memory."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import pytest

from torchpipe.errors import StateError
from torchpipe.iter import (
    FSSpecFileLister,
    IterableWrapper,
    TextLineReader,
)
from torchpipe.node.datapipe import iterate
from torchpipe.testing import CountingSource, check_node


@pytest.fixture
def memory() -> Any:
    system = fsspec.filesystem("memory")
    for number in range(4):
        system.pipe(f"/nodes/{number}.txt", f"{number}\n\u00e4".encode())
    system.pipe("/nodes/more/x.bin", b"x")
    yield system
    system.rm("/nodes", recursive=True)


URLS = [f"memory:///nodes/{number}.txt" for number in range(4)]


def test_listing(memory: Any, tmp_path: Path) -> None:
    assert list(FSSpecFileLister("memory://nodes")) == [*URLS, "memory:///nodes/more"]
    assert list(FSSpecFileLister(["memory://nodes/more", "memory://nodes"], masks=["*.bin", "3*"])) == [
        "memory:///nodes/more/x.bin",
        URLS[3],
    ]
    assert list(FSSpecFileLister("memory://nodes/2.txt")) == ["memory://nodes/2.txt"]
    for name in "ba":
        (tmp_path / name).touch()
    assert list(FSSpecFileLister(str(tmp_path))) == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert list(FSSpecFileLister(f"file://{tmp_path}")) == [f"file://{tmp_path}/a", f"file://{tmp_path}/b"]
    assert list(IterableWrapper([tmp_path]).list_files_by_fsspec("b")) == [f"{tmp_path}/b"]
    assert list(FSSpecFileLister("simplecache::memory://nodes", "*.txt"))[0] == "simplecache::memory:///nodes/0.txt"


def test_L2_exact_resume(memory: Any) -> None:
    check_node(lambda: FSSpecFileLister(["memory://nodes", "memory://nodes/more"]))
    check_node(
        lambda: CountingSource(["memory://nodes/more", "memory://nodes"]).list_files_by_fsspec(), pulls=lambda k: 2
    )
    check_node(lambda: CountingSource(URLS).open_files_by_fsspec())
    check_node(lambda: CountingSource(URLS).open_files_by_fsspec("rb").flatmap(lambda pair: pair[1]), pulls=lambda k: k)


def test_L7_a_folder_that_changed_is_an_error(memory: Any) -> None:
    iterator = iterate(FSSpecFileLister("memory://nodes"))
    next(iterator)
    memory.pipe("/nodes/00", b"")
    resumed = iterate(FSSpecFileLister("memory://nodes"))
    resumed.load_state_dict(iterator.state_dict())
    with pytest.raises(StateError, match="has changed since the state was saved"):
        next(resumed)
    with pytest.raises(FileNotFoundError):
        list(FSSpecFileLister("memory://nowhere"))


def test_opening(memory: Any, tmp_path: Path) -> None:
    source = IterableWrapper(URLS)
    assert [(url, stream.read()) for url, stream in source.open_files_by_fsspec()][1] == (URLS[1], "1\n\u00e4")
    assert [stream.read() for _, stream in source.open_files_by_fsspec("rb")][1] == "1\n\u00e4".encode()
    latin = source.open_files_by_fsspec(kwargs_for_open={"encoding": "latin-1"})
    assert [stream.read() for _, stream in latin][1] == "1\n\u00c3\u00a4"
    ((_, one), (_, other)) = list(IterableWrapper([URLS[1]] * 2).open_files_by_fsspec("rb"))
    assert (one.read(1), other.read(2), one.read(1), other.read(1)) == (
        b"1",
        b"1\n",
        b"\n",
        b"\xc3",
    )  # places of their own
    memory.pipe("/nodes/0.gz", __import__("gzip").compress(b"packed"))
    packed = IterableWrapper(["memory:///nodes/0.gz"]).open_files_by_fsspec(
        "rb", kwargs_for_open={"compression": "infer"}
    )
    assert [stream.read() for _, stream in packed] == [b"packed"]
    (tmp_path / "x").write_text("local")
    assert [stream.read() for _, stream in IterableWrapper([tmp_path / "x"]).open_files_by_fsspec()] == ["local"]
    assert len(source.open_files_by_fsspec()) == 4


def test_L6_streams_are_closed_when_dropped_and_by_close(memory: Any) -> None:
    iterator = iterate(IterableWrapper(URLS).open_files_by_fsspec("rb"))
    dropped = next(iterator)[1].file_obj
    _, stream = next(iterator)
    assert dropped.closed
    assert not stream.closed
    iterator.close()
    assert stream.closed


@pytest.mark.parametrize("base", ["memory://nodes/out", "file://{tmp}/out", "{tmp}/out"])
def test_saving(memory: Any, tmp_path: Path, base: str) -> None:
    base = base.format(tmp=tmp_path)
    items = [(f"{number}.txt", f"{number}\u00e4") for number in range(3)]
    node = (
        IterableWrapper(items).save_by_fsspec(filepath_fn=lambda name: f"{base}/{name}", auto_mkdir=True)
        if (base.startswith("file"))
        else IterableWrapper(items).save_by_fsspec(root=base)
    )
    if base.startswith("memory"):
        memory.makedirs("/nodes/out")
    urls = list(node)
    assert urls == [f"{base}/{name}" for name, _ in items]
    assert [stream.read() for _, stream in IterableWrapper(urls).open_files_by_fsspec()] == [text for _, text in items]
    assert len(node) == 3
    appended = [("x", b"a"), ("x", b"b")]
    if not base.startswith("memory"):
        list(IterableWrapper(appended).save_by_fsspec("ab", lambda name: f"{base}/{name}"))
        assert (tmp_path / "out" / "x").read_bytes() == b"ab"


def test_L2_exact_resume_of_savers(tmp_path: Path) -> None:
    items = [(f"{number}", f"{number}") for number in range(4)]
    check_node(lambda: CountingSource(items).save_by_fsspec(root=str(tmp_path)))
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2", "3"]


def test_nothing_is_written_outside_of_the_root(tmp_path: Path, memory: Any) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    names = [
        "../x",
        "../../../../../../../../../../../../tmp/torchpipe-slipped",
        "a/../../x",
        "link/x",
        str(tmp_path / "x"),
        f"file://{root}/x",
        ".",
    ]
    for name in names:
        with pytest.raises(ValueError, match="lies outside of"):
            list(IterableWrapper([(name, "x")]).save_by_fsspec(root=str(root)))
    for name in ("../x", "memory://other/x", "memory://nodes/../x", "memory://nodesx"):
        with pytest.raises(ValueError, match="lies outside of"):
            list(IterableWrapper([(name, "x")]).save_by_fsspec(root="memory://nodes"))
    assert sorted(os.listdir(root)) == ["link"]
    assert sorted(os.listdir(tmp_path)) == ["root"]
    inside = IterableWrapper([(str(root / "y"), "x"), ("a/../z", "x")]).save_by_fsspec(root=str(root))
    assert next(iter(inside)) == f"{root}/y"


def test_wrong_items_are_errors() -> None:
    items: Any = IterableWrapper([3])
    cases: list[Any] = [
        (lambda: list(items.list_files_by_fsspec()), TypeError, "URLs or paths, got 3"),
        (lambda: list(items.open_files_by_fsspec()), TypeError, "paths or URLs, got 3"),
        (lambda: list(items.save_by_fsspec()), TypeError, "pairs"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()


def test_a_glob_within_an_archive_at_a_url(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(3):
            archive.writestr(f"x/{number}.txt", f"{number}\n")
    assert list(TextLineReader(f"zip://x/*.txt::file://{tmp_path}/a.zip")) == ["0", "1", "2"]
