"""Braces as in a shell, globs in a fixed order; what is missing is an error at once."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from torchpipe.formats.places import paths
from torchpipe.formats.places.paths import expand_braces, expand_paths
from torchpipe.iter import PathList
from torchpipe.testing import check_node


@pytest.mark.parametrize(
    "text",
    ["a", "a{000..011}.tar", "{a,b{1..2}}-{x,y}", "{3..1}{}", "{a}", "{a,}z", "a{b", "{{a,b}}", "{-1..1}", "}{", "{,}"],
)
def test_braces_are_a_shells(text: str) -> None:
    said = subprocess.run(["bash", "-c", f"printf '%s\\n' {text}"], capture_output=True, text=True, check=True).stdout
    assert [one for one in expand_braces(text) if one] == [one for one in said.split("\n") if one]


def test_too_many_names_are_a_slip(monkeypatch: pytest.MonkeyPatch) -> None:
    assert paths.MOST_NAMES == 1_000_000
    monkeypatch.setattr(paths, "MOST_NAMES", 1_000)
    for text in ("{0..99999999999}", "{0..99}{0..99}"):
        with pytest.raises(ValueError, match="more than 1,000 names"):
            expand_braces(text)


def test_names_that_exist_come_first_then_braces_and_sorted_globs(tmp_path: Path) -> None:
    for name in ("b1", "b0", "c[1].x", "{a,b}"):
        (tmp_path / name).write_text("")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b2").write_text("")

    def names(*given: str) -> list[str]:
        found = expand_paths("test", [tmp_path / one for one in given])
        return [Path(path).relative_to(tmp_path).as_posix() for path in found]

    assert names("{a,b}", "c[1].x") == ["{a,b}", "c[1].x"]
    assert names("b{1,0}", "b*") == ["b1", "b0", "b0", "b1"]
    assert names("**/b?") == ["b0", "b1", "inner/b2"]


def test_urls_have_globs_too() -> None:
    import fsspec

    for number in range(3):
        with fsspec.open(f"memory://torchpipe-paths/{number}.txt", "w") as file:
            file.write("x")
    expected = tuple(f"memory:///torchpipe-paths/{number}.txt" for number in range(3))
    assert expand_paths("test", "memory://torchpipe-paths/*.txt") == expected
    assert expand_paths("test", "s3://bucket/{0..1}.txt") == ("s3://bucket/0.txt", "s3://bucket/1.txt")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("missing-{1..2}", FileNotFoundError, "test found no file 'missing-1' .*working directory"),
        ("missing-*", FileNotFoundError, "test found no file for 'missing-\\*'"),
        ([], ValueError, "at least one path"),
        (3, TypeError, "needs paths, got 3 of type int"),
        ([3], TypeError, "needs paths, got 3 of type int"),
        ({"a"}, TypeError, "of type set"),
        ([b"a"], TypeError, "got b'a' of type bytes"),
    ],
)
def test_what_is_no_file_is_refused(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        expand_paths("test", given)


def test_a_list_of_paths_is_a_node(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}").write_text("")
    pattern = str(tmp_path / "*")
    assert list(PathList(pattern)) == [str(tmp_path / f"{number}") for number in range(5)]
    check_node(lambda: PathList(pattern).shuffle().sharding_filter(), epochs=[0])
