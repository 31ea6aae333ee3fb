"""A file that was cut, appended to or replaced between the state and the resume is noticed, however it is opened."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.formats.test_tfrecord import WRITTEN
from tests.laws.executors import make_loader, make_service
from torchpipe import DataLoader2
from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.state import decode, encode

LINES = [f"line {number}" for number in range(8)]


def text(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


def gz(path: Path, lines: list[str]) -> None:
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))


def tar(path: Path, lines: list[str]) -> None:
    with tarfile.open(path, "w") as archive:
        for number, line in enumerate(lines):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = len(line)
            archive.addfile(info, io.BytesIO(line.encode()))


def zipped(path: Path, lines: list[str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number, line in enumerate(lines):
            archive.writestr(zipfile.ZipInfo(f"{number}.txt"), line)


def records(path: Path, lines: list[str]) -> None:
    path.write_bytes(WRITTEN * len(lines))


def paths(folder: Path) -> Any:
    return IterableWrapper(sorted(map(str, folder.iterdir())))


def opened(folder: Path) -> Any:
    return paths(folder).open_files("b")


def content(pair: tuple[str, Any]) -> str:
    return str(pair[1].read())


FORMS: dict[str, tuple[Callable[[Path, list[str]], None], Callable[[Path], Any]]] = {
    "by fsspec": (
        text,
        lambda folder: paths(folder).open_files_by_fsspec("rb").flatmap(lambda pair: pair[1]),
    ),
    "flatmap": (text, lambda folder: paths(folder).flatmap(open)),
    "flatmap of streams": (text, lambda folder: opened(folder).flatmap(lambda pair: pair[1])),
    "interleave": (text, lambda folder: paths(folder).interleave(open)),
    "read_webdataset": (tar, lambda folder: paths(folder).read_webdataset().map(lambda item: item["txt"])),
}


@pytest.mark.parametrize("form", FORMS)
def test_another_file_of_the_same_name_is_refused(form: str, tmp_path: Path) -> None:
    write, graph = FORMS[form]
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    name = "x.txt.gz" if "compressed" in form else "x.txt"
    write(here / name, LINES)
    whole = list(graph(here))
    iterator = iterate(graph(here))
    iterator.drop(3)
    state = decode(encode(iterator.state_dict()))
    iterator.close()
    del iterator
    shutil.copytree(here, there)
    for folder in (here, there):
        resumed = iterate(graph(folder))
        resumed.load_state_dict(state)
        assert list(resumed) == whole[3:]
    for lines in ([*LINES, "appended"], LINES[:6]):
        write(here / name, lines)
        resumed = iterate(graph(here))
        resumed.load_state_dict(state)
        with pytest.raises(StateError, match=r"x\.txt.* has changed since the state was saved"):
            next(resumed)
        resumed.close()


@pytest.mark.parametrize("workers", [None, 2])
def test_it_is_noticed_by_loaders_too_whoever_resumes(workers: int | None, tmp_path: Path) -> None:
    for number in range(2):
        text(tmp_path / f"{number}.txt", LINES)

    def graph() -> Any:
        return opened(tmp_path).sharding_filter().flatmap(lambda pair: pair[1])

    with make_loader(graph(), make_service(workers, 2, every=1)) as loader:
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        state = loader.state_dict()
    text(tmp_path / "1.txt", [*LINES, "appended"])
    for others in (None, 1):
        with DataLoader2(graph(), reading_service=make_service(others, 2)) as loader:
            loader.load_state_dict(state)
            with pytest.raises(StateError, match=r"1\.txt has changed since the state was saved: it had 56 bytes, and"):
                list(loader)
