"""``read_from_stream``."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    for name, content in {"a": "\u00e40123456", "b": "", "c": "789"}.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    return [str(tmp_path / name) for name in "abc"]


@pytest.mark.parametrize("mode", ["r", "b"])
def test_L2_exact_resume(paths: list[str], mode: str) -> None:
    check_node(lambda: CountingSource(paths).open_files(mode).read_from_stream(3), pulls=lambda k: 3)
    check_node(lambda: CountingSource(paths).open_files(mode).read_from_stream(), pulls=lambda k: 3)


def test_content(paths: list[str]) -> None:
    source = IterableWrapper(paths)
    assert [piece for _, piece in source.open_files("r").read_from_stream(3)] == ["\u00e401", "234", "56", "789"]
    assert list(source.open_files("b").read_from_stream()) == [
        (paths[0], "\u00e40123456".encode()),
        (paths[2], b"789"),
    ]


def test_L6_files_are_closed() -> None:
    stream = io.BytesIO(b"abc")
    assert list(IterableWrapper([("x", stream)], deepcopy=False).read_from_stream(2)) == [("x", b"ab"), ("x", b"c")]
    assert stream.closed


def test_wrong_items_are_errors() -> None:
    with pytest.raises(TypeError, match="read_from_stream needs"):
        list(IterableWrapper(["x"]).read_from_stream())  # type: ignore[misc]
