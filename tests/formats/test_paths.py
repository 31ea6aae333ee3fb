"""Braces as in a shell, globs in a fixed order; what is missing is an error at once."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.laws.executors import make_loader, make_service
from torchpipe import DataLoader2
from torchpipe.errors import StateMismatchError
from torchpipe.formats.storage import paths
from torchpipe.formats.storage.paths import expand_braces, expand_paths
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
    assert names("b{1,0}") == ["b1", "b0"]
    assert names("b*") == ["b0", "b1"]
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
    ("given", "message"),
    [
        ("missing-{1..2}", "test found no file 'missing-1' .*working directory"),
        ("missing-*", "test found no file for 'missing-\\*'"),
    ],
)
def test_what_is_no_file_is_refused(given: str, message: str) -> None:
    with pytest.raises(FileNotFoundError, match=message):
        expand_paths("test", given)


def test_a_list_of_paths_is_a_node(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}").write_text("")
    pattern = str(tmp_path / "*")
    assert list(PathList(pattern)) == [str(tmp_path / f"{number}") for number in range(5)]
    check_node(lambda: PathList(pattern).shuffle().sharding_filter(), epochs=[0])


LISTINGS: dict[str, Any] = {"PathList": lambda folder: PathList(str(folder / "**" / "*.txt"))}


def _graph(folder: Path, explicit: list[str] | None = None, listing: str = "PathList") -> Any:
    paths: Any = LISTINGS[listing](folder) if explicit is None else PathList(explicit)
    return paths.shuffle(buffer_size=3).sharding_filter().read_lines().shuffle(buffer_size=4)


def _resumed(graph: Any, state: Any, workers: int | None = None) -> list[str]:
    with DataLoader2(graph, reading_service=make_service(workers, 2)) as loader:
        loader.load_state_dict(state)
        return list(loader)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data" / "inner").mkdir(parents=True)
    for number in range(9):
        (tmp_path / "data" / "inner"[: 5 * (number % 2)] / f"{number}.txt").write_text(f"{number}a\n{number}b\n")
    return tmp_path / "data"


CHANGES: list[tuple[Any, str]] = [
    (lambda folder: (folder / "4b.txt").write_text("new\n"), r"10 files from '0.txt' .*newest is '.*4b.txt'"),
    (lambda folder: (folder / "z.txt").write_text("new\n"), r"10 files from '0.txt' .*newest is '.*z.txt'"),
    (lambda folder: (folder / "2.txt").unlink(), r"8 files from '0.txt' to 'inner/7.txt', 48 bytes"),
    (lambda folder: (folder / "2.txt").rename(folder / "2b.txt"), r"9 files from '0.txt' to 'inner/7.txt', 54 bytes"),
    (lambda folder: (folder / "8.txt").write_text("longer\n"), r"9 files from '0.txt' to 'inner/7.txt', 55 bytes"),
]


@pytest.mark.nightly
@pytest.mark.parametrize("listing", LISTINGS)
@pytest.mark.parametrize(("change", "now"), CHANGES)
def test_a_resume_over_other_files_is_refused_and_names_both_sides(
    folder: Path, listing: str, change: Any, now: str
) -> None:
    states = []
    for workers in (None, 2):
        for seed in range(3):
            with make_loader(_graph(folder, listing=listing), make_service(workers, 2, every=1), seed) as loader:
                iterator = iter(loader)
                for _ in range(7):
                    next(iterator)
                states.append(loader.state_dict())
                assert len(list(iterator)) == 11
    change(folder)
    for number, state in enumerate(states):
        with pytest.raises(StateMismatchError, match=rf"then it was 9 files from '0.txt' .*, now it is {now}"):
            _resumed(_graph(folder, listing=listing), state, (None, 1)[number % 2])


@pytest.mark.parametrize("workers", [None, 2])
def test_a_run_goes_on_where_the_same_files_lie_elsewhere_and_between_epochs_with_more(
    folder: Path, tmp_path: Path, workers: int | None
) -> None:
    with make_loader(_graph(folder), make_service(workers, 2)) as loader:
        head = [item for _, item in zip(range(7), loader)]
        state = loader.state_dict()
        rest = _resumed(_graph(folder), state)
        assert sorted(head + rest) == sorted(f"{number}{letter}" for number in range(9) for letter in "ab")
        loader.load_state_dict(state)
        list(loader)
        ended = loader.state_dict()
    there = tmp_path / "moved" / "deeper"
    shutil.copytree(folder, there)
    assert _resumed(_graph(there), state) == rest
    known = [str(path) for path in sorted(there.rglob("*.txt"))]
    (there / "4b.txt").write_text("new\n")
    assert _resumed(_graph(there, known), state) == rest  # the list that was saved with the run
    assert len(_resumed(_graph(there), ended)) == 19  # another epoch


def test_a_file_that_two_texts_name_is_read_twice_by_mistake(tmp_path: Path) -> None:
    for name in ("a.txt", "ab.txt"):
        (tmp_path / name).write_text(name)
    with pytest.raises(ValueError, match=r"would read '.*ab.txt' twice: '.*a\*' and '.*\*b.txt' both name it"):
        expand_paths("PathList", [str(tmp_path / "a*"), str(tmp_path / "*b.txt")])
    twice = [str(tmp_path / "a.txt")] * 2
    assert expand_paths("PathList", twice) == tuple(twice)


@pytest.mark.parametrize("folder", ["run[1]", "v*", "a?b", "{x,y}", "{0..3}[!a]"])
def test_a_name_that_exists_is_no_pattern_also_with_braces_beside_it(folder: str, tmp_path: Path) -> None:
    for name in (folder, "run1", "vv", "axb", "x", "y", "0b"):
        (tmp_path / name).mkdir(exist_ok=True)
        for number in range(2):
            (tmp_path / name / f"part-{number}").write_text("")
    escaped = glob.escape(str(tmp_path / folder)).replace("{", "[{]").replace("}", "[}]")
    named = [str(tmp_path / folder / f"part-{number}") for number in range(2)]
    assert [*expand_paths("test", f"{escaped}/part-?")] == named
    assert [*expand_paths("test", f"{escaped}/part-{{0..1}}")] == named
    if "{" not in folder:
        assert [*expand_paths("test", str(tmp_path / folder / "part-{0..1}"))] == named


def test_one_file_that_is_spelled_in_two_ways_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        (tmp_path / "data" / name).write_text(name)
    (tmp_path / "data" / "nowhere").symlink_to(tmp_path / "missing")
    os.link(tmp_path / "data" / "a", tmp_path / "data" / "hard")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "linked").symlink_to("data")
    (tmp_path / "c").symlink_to("data/a")
    for texts in (
        ["data/a", "./data/a"],
        ["data/*", str(tmp_path / "data" / "*")],
        ["data/a", "linked/a"],
        ["data/{a,b}", "data/../data/b"],
        ["c", "data/a"],
        ["**/a"],
        ["*/a"],
    ):
        with pytest.raises(ValueError, match=r"would read '.*/data/[ab]' twice: .* are one file\. Give paths"):
            expand_paths("test", texts)
    (tmp_path / "linked").unlink()
    (tmp_path / "c").unlink()
    assert expand_paths("test", ["data/*", "data/*"]) == ("data/a", "data/b", "data/hard", "data/nowhere") * 2
    (tmp_path / "data" / "loop").symlink_to(".")
    with pytest.raises(ValueError, match="are one file"):
        expand_paths("test", "data/**/b")
