"""``list_files``: order, masks, folders that are missing or have changed."""

from __future__ import annotations

import inspect
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.formats import test_paths
from tests.graph.test_content_digest import Unseen, content
from tests.graph.test_fingerprint import source
from torchpipe.errors import StateError, StateMismatchError
from torchpipe.iter import FileLister, IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.node.fingerprint import describe_graph, fingerprint
from torchpipe.state import decode, encode
from torchpipe.testing import CountingSource, check_node

NAMES = ["b.txt", "a.txt", "c.tar", "sub/z.txt", "sub/deep/y.txt", "other/x.txt"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(name)
    return tmp_path / "root"


def names(node: Any, root: Path) -> list[str]:
    return [os.path.relpath(path, root) for path in iterate(node)]


def test_L2_exact_resume(root: Path) -> None:
    check_node(lambda: FileLister(str(root), recursive=True))
    check_node(lambda: FileLister([str(root), str(root / "sub"), str(root / "other")], "*.txt", recursive=True))
    folders = [str(root), str(root / "sub")]
    check_node(lambda: CountingSource(folders).shuffle().list_files(recursive=True), pulls=lambda k: 2)
    check_node(lambda: FileLister(root, "*.none"))


def test_order_masks_and_depth(root: Path) -> None:
    assert names(FileLister(root), root) == ["a.txt", "b.txt", "c.tar"]
    assert names(FileLister(root, recursive=True), root) == [
        "a.txt",
        "b.txt",
        "c.tar",
        "other/x.txt",
        "sub/z.txt",
        "sub/deep/y.txt",
    ]
    assert names(FileLister(root, "*.txt"), root) == ["a.txt", "b.txt"]
    assert names(FileLister(root, ["*.tar", "b*"]), root) == ["b.txt", "c.tar"]
    assert sorted(names(FileLister(root, non_deterministic=True), root)) == ["a.txt", "b.txt", "c.tar"]


def test_it_lists_what_torchs_node_lists(root: Path) -> None:
    from torch.utils.data.datapipes.iter import FileLister as TorchLister

    for arguments in ({}, {"recursive": True}, {"masks": "*.txt", "abspath": True, "recursive": True}):
        assert list(FileLister(str(root), **arguments)) == list(TorchLister(str(root), **arguments))


def test_relative_and_absolute_paths(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    assert list(FileLister(masks="*.tar")) == ["./c.tar"]
    assert list(FileLister(masks="*.tar", abspath=True)) == [str(root / "c.tar")]
    assert list(FileLister("c.tar")) == ["c.tar"]
    check_node(lambda: FileLister(".", abspath=True))


def test_a_missing_folder_is_named(root: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"no folder '{root}/none'"):
        FileLister(root / "none")
    with pytest.raises(FileNotFoundError, match="none"):
        list(IterableWrapper([str(root / "none")]).list_files())
    node = FileLister(root)
    shutil.rmtree(root)
    with pytest.raises(FileNotFoundError, match=str(root)):
        list(node)


@pytest.mark.parametrize(
    ("change", "now"),
    [
        (lambda root: (root / "0.txt").touch(), "4 files from '0.txt' to 'c.tar', 15 bytes"),
        (lambda root: (root / "b2.txt").touch(), "4 files from 'a.txt' to 'c.tar', 15 bytes .*newest is '.*b2.txt'"),
        (lambda root: (root / "a.txt").unlink(), "2 files from 'b.txt' to 'c.tar', 10 bytes"),
        (lambda root: (root / "a.txt").rename(root / "aa.txt"), "3 files from 'aa.txt' to 'c.tar', 15 bytes"),
        (lambda root: (root / "b.txt").rename(root / "bb.txt"), "3 files from 'a.txt' to 'c.tar', 15 bytes"),
        (lambda root: (root / "c.tar").write_text("longer"), "3 files from 'a.txt' to 'c.tar', 16 bytes"),
    ],
)
def test_a_folder_that_changed_since_is_an_error(root: Path, change: Any, now: str) -> None:
    states = []
    for count in (1, 3):
        iterator = iterate(FileLister(root))
        iterator.drop(count)
        states.append(decode(encode(iterator.state_dict())))
    change(root)
    for state in states:
        resumed = iterate(FileLister(root))
        resumed.load_state_dict(state)
        with pytest.raises(StateMismatchError, match=f"then it was 3 files from 'a.txt' to 'c.tar', 15 bytes .*{now}"):
            next(resumed)


def test_forged_states_are_refused(root: Path) -> None:
    iterator = iterate(FileLister(root))
    next(iterator)
    state = iterator.state_dict()
    for forged in ({"files": 3}, {"files": [1, 2]}, {"position": 9}, {"root": 7}, {"position": -1}):
        resumed = iterate(FileLister(root))
        with pytest.raises(StateError):  # one is found when the folder is listed
            resumed.load_state_dict(state | forged)
            next(resumed)


def test_the_data_may_lie_elsewhere_when_a_run_goes_on(root: Path, tmp_path: Path) -> None:
    node = FileLister(root, recursive=True)
    iterator = iterate(node)
    iterator.drop(4)
    shutil.move(root, tmp_path / "moved")
    moved = FileLister(tmp_path / "moved", recursive=True)
    assert fingerprint(moved) == fingerprint(node)
    resumed = iterate(moved)
    resumed.load_state_dict(iterator.state_dict())
    assert [os.path.relpath(path, tmp_path / "moved") for path in resumed] == ["sub/z.txt", "sub/deep/y.txt"]


def test_len_is_what_was_said(root: Path) -> None:
    assert len(FileLister(root, length=3)) == 3
    with pytest.raises(TypeError, match="pass length="):
        len(FileLister(root))


def test_wrong_items_are_errors() -> None:
    with pytest.raises(TypeError, match="folders as paths, got 3"):
        list(IterableWrapper([3]).list_files())


def test_where_files_lie_does_not_count_but_which_are_listed_does(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    listed = fingerprint(FileLister(str(here), "*.png").sharding_filter())
    assert fingerprint(FileLister(str(there), "*.png").sharding_filter()) == listed
    assert fingerprint(FileLister(str(there), "*.jpg").sharding_filter()) != listed
    assert fingerprint(FileLister(str(there), "*.png", recursive=True).sharding_filter()) != listed


def test_a_node_that_yields_the_folders_is_an_input_like_any_other(tmp_path: Path) -> None:
    folders = source([str(tmp_path)])
    given, computed = FileLister(str(tmp_path)), FileLister(folders)
    assert fingerprint(computed) != fingerprint(given)
    assert fingerprint(FileLister(folders.map(str))) != fingerprint(computed)
    assert describe_graph(computed).endswith(" <- 0")


def test_the_files_of_folders_that_a_node_names_cannot_be_seen() -> None:
    node = FileLister(IterableWrapper(["."]))
    with pytest.raises(Unseen, match=r"files of FileLister .*folders that IterableWrapper names"):
        content(node)
    assert content(node, lenient=True) == content(node, lenient=True)


def test_files_count_by_path_size_and_time(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n2\n")
    listed = content(FileLister(str(tmp_path), "*.txt").open_files())
    assert content(FileLister(str(tmp_path), "*.txt").open_files()) == listed
    os.utime(tmp_path / "a.txt", ns=(1, 1))
    assert content(FileLister(str(tmp_path), "*.txt").open_files()) != listed


@pytest.mark.nightly
@pytest.mark.parametrize(("change", "now"), test_paths.CHANGES)
def test_a_resume_over_other_files_is_refused_and_names_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, now: str
) -> None:
    monkeypatch.setitem(
        test_paths.LISTINGS, "FileLister", lambda folder: FileLister(str(folder), "*.txt", recursive=True)
    )
    folder = inspect.unwrap(test_paths.folder)(tmp_path)
    test_paths.test_a_resume_over_other_files_is_refused_and_names_both_sides(folder, "FileLister", change, now)
