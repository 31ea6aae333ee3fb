"""``parse_json_files``."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    for number in range(3):
        (tmp_path / str(number)).write_text(json.dumps([number, {"a": 1.5}]))
    return [str(tmp_path / str(number)) for number in range(3)]


def test_L2_exact_resume(paths: list[str]) -> None:
    check_node(lambda: CountingSource(paths).open_files().parse_json_files())
    check_node(lambda: CountingSource(paths).open_files("b").parse_json_files(parse_int=str))


def test_content(paths: list[str]) -> None:
    pairs = IterableWrapper(paths).open_files("b")
    assert list(pairs.parse_json_files()) == [(path, [number, {"a": 1.5}]) for number, path in enumerate(paths)]
    assert list(pairs.parse_json_files(parse_int=str))[2] == (paths[2], ["2", {"a": 1.5}])
    assert len(pairs.parse_json_files()) == 3


def test_L7_damage_is_an_error_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("[1, 2")
    with pytest.raises(json.JSONDecodeError) as caught:
        list(IterableWrapper([str(tmp_path / "x")]).open_files().parse_json_files())
    assert caught.value.__notes__ == [f"while reading {tmp_path / 'x'}"]


def test_L6_files_are_closed() -> None:
    stream = io.StringIO("1")
    assert list(IterableWrapper([("x", stream)], deepcopy=False).parse_json_files()) == [("x", 1)]
    assert stream.closed


def test_wrong_items_are_errors() -> None:
    with pytest.raises(TypeError, match="parse_json_files needs"):
        list(IterableWrapper(["x"]).parse_json_files())  # type: ignore[misc]
