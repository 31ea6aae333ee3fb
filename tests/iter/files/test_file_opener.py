"""``open_files``: modes, what cannot be opened, what is closed when."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.state import encode
from torchpipe.testing import CountingSource, check_node


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    for name in "abc":
        (tmp_path / name).write_text(f"{name}\u00e4\n", encoding="utf-8")
    return [str(tmp_path / name) for name in "abc"]


def test_L2_exact_resume(paths: list[str]) -> None:
    check_node(lambda: CountingSource(paths).open_files())
    check_node(lambda: CountingSource(paths).shuffle().open_files("b"), pulls=lambda k: 3)


@pytest.mark.parametrize(("mode", "expected"), [("r", str), ("t", str), ("rt", str), ("b", bytes), ("rb", bytes)])
def test_modes(paths: list[str], mode: str, expected: type) -> None:
    path, stream = next(iter(IterableWrapper(paths).open_files(mode)))
    assert path == paths[0]
    assert type(stream.read()) is expected
    stream.close()


def test_encoding_and_pathlib(paths: list[str]) -> None:
    node = IterableWrapper([Path(path) for path in paths]).open_files(encoding="latin-1")
    path, stream = next(iter(node))
    assert (path, stream.read()) == (paths[0], "a\u00c3\u00a4\n")
    stream.close()


def test_paths_with_a_scheme_go_to_fsspec() -> None:
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://torchpipe-test/a.txt", "w") as file:
        file.write("hello")
    for mode, expected in (("r", "hello"), ("b", b"hello")):
        ((path, stream),) = IterableWrapper(["memory://torchpipe-test/a.txt"]).open_files(mode)
        assert (path, stream.read()) == ("memory://torchpipe-test/a.txt", expected)
        stream.close()


def test_L6_files_are_closed_when_dropped_and_by_close(paths: list[str]) -> None:
    iterator = iterate(IterableWrapper(paths).open_files())
    file = next(iterator)[1].file_obj
    gc.collect()
    assert file.closed  # nobody held the stream
    _, stream = next(iterator)
    assert not stream.closed
    iterator.close()
    assert stream.closed


def test_L7_what_cannot_be_opened_is_an_error_with_the_path(paths: list[str], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        list(IterableWrapper([str(tmp_path / "missing")]).open_files())
    with pytest.raises(TypeError, match="needs paths or URLs, got 3 of type int"):
        list(IterableWrapper([3]).open_files())


def test_an_open_file_in_a_buffer_cannot_be_saved(paths: list[str]) -> None:
    iterator = iterate(IterableWrapper(paths).open_files("b").shuffle())
    next(iterator)
    with pytest.raises(StateError, match="before files are opened"):
        encode(iterator.state_dict())
    iterator.close()


def test_len(paths: list[str]) -> None:
    assert len(IterableWrapper(paths).open_files()) == 3
    assert len(IterableWrapper(paths).open_files(length=7)) == 7
    with pytest.raises(TypeError):
        len(IterableWrapper(paths).filter(bool).open_files())
