"""Folders that are missing and archives that are damaged: errors with node and item."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.test_bad_input import notes_of, workers
from torchpipe import DataLoader2
from torchpipe.iter import FileLister


def test_a_missing_folder(tmp_path: Path) -> None:
    missing = str(tmp_path / "images")
    with pytest.raises(FileNotFoundError, match=f"found no folder '{missing}' .working directory"):
        FileLister(missing)
    there = tmp_path / "there"
    there.mkdir()
    graph = FileLister(str(there)).sharding_filter()
    there.rmdir()
    with (
        DataLoader2(graph, reading_service=workers(1)) as loader,
        pytest.raises(FileNotFoundError, match=f"found no folder '{there}'") as caught,
    ):
        list(loader)
    assert "raised in FileLister for item 0 of shard 0 of 1" in notes_of(caught.value)


def read_member(member: tuple[str, Any]) -> bytes:
    data: bytes = member[1].read()
    return data


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (
            5300,
            r"b\.tar is cut off .*\nTarArchiveLoader: while reading .*b\.tar, file 2 .*\n.* in TarArchiveLoader",
        ),  # a header
        (6000, r"b\.tar is cut off .*\n.* in Mapper\(read_member\)"),  # within a member
    ],
)
def test_a_corrupt_tar_is_an_error_with_node_and_item(tmp_path: Path, size: int, message: str) -> None:
    for name in ("a", "b"):
        with tarfile.open(tmp_path / f"{name}.tar", "w") as archive:
            for number in range(4):
                info = tarfile.TarInfo(f"{number}.bin")
                info.size = 2000
                archive.addfile(info, io.BytesIO(bytes([number]) * 2000))
    damaged = tmp_path / "b.tar"
    damaged.write_bytes(damaged.read_bytes()[:size])
    graph = FileLister(str(tmp_path), "*.tar").sharding_filter().open_files(mode="b").load_from_tar().map(read_member)
    with (
        DataLoader2(graph, reading_service=workers()) as loader,
        pytest.raises(EOFError, match=message + " for item 2 of shard 1 of 2"),
    ):
        list(loader)
