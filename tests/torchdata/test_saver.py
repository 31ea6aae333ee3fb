"""``save_to_disk``, and the forms of iopath's users."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import fsspec
import pytest

from torchpipe.iter import (
    IoPathFileLister,
    IterableWrapper,
)
from torchpipe.testing import CountingSource, check_node


def test_saving_to_disk(tmp_path: Path) -> None:
    items = [("a/1", b"one"), ("a/2", b"two")]
    node = IterableWrapper(items).save_to_disk("b", lambda name: f"{tmp_path}/{name}")
    assert list(node) == [f"{tmp_path}/a/1", f"{tmp_path}/a/2"]
    assert (tmp_path / "a" / "2").read_bytes() == b"two"
    assert len(node) == 2
    with pytest.raises(FileExistsError):
        list(IterableWrapper(items).save_to_disk("xb", root=tmp_path))
    with pytest.raises(TypeError) as caught:
        list(IterableWrapper([("b", "text")]).save_to_disk("wb", root=tmp_path))
    assert caught.value.__notes__ == [f"while writing {tmp_path}/b"]
    assert sorted(os.listdir(tmp_path)) == ["a"]  # nothing half written


def test_forms_for_users_of_iopath(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("text")
    assert list(IoPathFileLister(str(tmp_path))) == [f"{tmp_path}/x"]
    opened = IterableWrapper([str(tmp_path)]).list_files_by_iopath("x").open_files_by_iopath("rb")
    assert [stream.read() for _, stream in opened] == [b"text"]
    saved = IterableWrapper([("y", b"y")]).save_by_iopath("wb", lambda name: f"{tmp_path}/{name}")
    assert [Path(path).read_bytes() for path in saved] == [b"y"]


def test_L2_exact_resume(tmp_path: Path) -> None:
    items = [(f"{number}", f"{number}") for number in range(4)]
    check_node(lambda: CountingSource(items).save_to_disk("t", root=tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2", "3"]


def test_nothing_is_written_outside_of_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("../../../../../../../../../../../../tmp/torchpipe-slipped"))
    slipped = IterableWrapper([str(tmp_path / "x.tar")]).open_files("b").load_from_tar()
    names = [path for path, _ in slipped] + [
        "../x",
        "a/../../x",
        "link/x",
        str(tmp_path / "x"),
        f"file://{root}/x",
        ".",
    ]
    for name in names:
        with pytest.raises(ValueError, match="lies outside of"):
            list(IterableWrapper([(name, "x")]).save_to_disk(root=root))
    assert sorted(os.listdir(root)) == ["link"]
    assert sorted(os.listdir(tmp_path)) == ["root", "x.tar"]
    assert list(IterableWrapper([(str(root / "y"), "x"), ("a/../z", "x")]).save_to_disk(root=root))[0] == f"{root}/y"


def test_wrong_items_are_errors() -> None:
    with pytest.raises(TypeError, match="pairs"):
        list(IterableWrapper([3]).save_to_disk())  # type: ignore[misc]


def test_L2_exact_resume_of_lines_behind_urls() -> None:
    system = fsspec.filesystem("memory")
    urls = [f"memory:///lines/{number}.txt" for number in range(4)]
    for number in range(4):
        system.pipe(f"/lines/{number}.txt", f"{number}\nb".encode())
    check_node(lambda: CountingSource(urls).open_files_by_fsspec("rb").readlines(), pulls=lambda k: k)
    system.rm("/lines", recursive=True)
