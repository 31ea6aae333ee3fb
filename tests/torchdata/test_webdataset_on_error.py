"""``webdataset`` under ``on_error("skip")``: a sample of which a file is left out goes whole."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper, PathList
from torchpipe.node.datapipe import iterate
from torchpipe.state import left_out
from torchpipe.testing import check_node

ENDINGS = (".cls", ".jpg", ".txt")
MEMBER_BYTES = 1024  # with its header


def archive(path: Path, bad: set[str] = frozenset(), cut: int | None = None) -> str:  # type: ignore[assignment]
    with tarfile.open(path, "w") as file:
        for number in range(4):
            for ending in ENDINGS:
                info = tarfile.TarInfo(f"{number}{ending}")
                content = b"bad" if info.name in bad else b"%d" % number
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
    if cut is not None:
        path.write_bytes(path.read_bytes()[:cut])
    return str(path)


def read(stream: Any) -> int:
    return int(stream.read())


def whole(stream: Any) -> bytes:
    content: bytes = stream.read()
    return content


def files(paths: list[str]) -> Any:
    return PathList(paths).open_files("b").load_from_tar()


WAYS: dict[str, Callable[[list[str]], Any]] = {
    "map": lambda paths: files(paths).map(read, input_col=1),
    "parallel_map": lambda paths: files(paths).map(whole, input_col=1).parallel_map(int, input_col=1, num_threads=2),
    "behind others": lambda paths: files(paths).map(read, input_col=1).filter(lambda pair: True).prefetch(3),
}


def samples(node: Any, **shard: int) -> tuple[list[str], int]:
    """Which samples there are, each of them whole; how many were left out."""
    with iterate(node.on_error("skip"), **shard) as stream:
        found = list(stream)
        assert all(sample.keys() == {"__key__", *ENDINGS} for sample in found), found
        return [Path(sample["__key__"]).name + Path(sample["__key__"]).parent.stem for sample in found], left_out(
            stream.state_dict()
        )[0]


def check_resumes(node: Any) -> None:
    """Exact at every position, and so is what was left out."""
    with iterate(node) as stream:
        whole = [sample["__key__"] for sample in stream]
        told = left_out(stream.state_dict())
    for done in range(len(whole) + 1):
        with iterate(node) as first, iterate(node) as second:
            got = [next(first)["__key__"] for _ in range(done)]
            second.load_state_dict(first.state_dict())
            assert got + [sample["__key__"] for sample in second] == whole, f"resumed after {done}"
            assert left_out(second.state_dict()) == told


def check(way: str, paths: list[str], expected: list[str], count: int) -> None:
    assert samples(WAYS[way](paths).webdataset()) == (expected, count)
    check_node(lambda: WAYS[way](paths).webdataset().on_error("skip"), epochs=[0], num_shards=1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("number", [0, 2, 3])
def test_a_sample_goes_whole_with_one_of_its_files(number: int, ending: str, way: str, tmp_path: Path) -> None:
    paths = [archive(tmp_path / "a.tar", {f"{number}{ending}"}), archive(tmp_path / "b.tar")]
    expected = [f"{n}{name}" for name in "ab" for n in range(4) if (name, n) != ("a", number)]
    if ending == ENDINGS[0] or way == "map":
        check(way, paths, expected, 1)
    else:
        assert samples(WAYS[way](paths).webdataset()) == (expected, 1)


def test_several_bad_files_of_one_sample_are_one_sample(tmp_path: Path) -> None:
    paths = [archive(tmp_path / "a.tar", {"1.cls", "1.txt", "2.cls", "2.jpg"}), archive(tmp_path / "b.tar", {"0.cls"})]
    check("map", paths, ["0a", "3a", "1b", "2b", "3b"], 3)
    shards = [
        samples(
            PathList(paths).sharding_filter().open_files("b").load_from_tar().map(read, input_col=1).webdataset(),
            shard=shard,
            num_shards=2,
        )
        for shard in range(2)
    ]
    assert shards == [(["0a", "3a"], 2), (["1b", "2b", "3b"], 1)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("members", "more"), [(7, 200), (6, 700), (8, 0), (9, 200)])
def test_of_an_archive_that_is_cut_off_no_sample_comes_in_part(
    members: int, more: int, way: str, tmp_path: Path
) -> None:
    cut = archive(tmp_path / "a.tar", cut=members * MEMBER_BYTES + more)
    paths = [cut, archive(tmp_path / "b.tar")]
    expected = ["0a", "1a", *(f"{n}b" for n in range(4))]
    assert samples(WAYS[way](paths).webdataset())[0] == expected
    check_resumes(WAYS[way](paths).webdataset().on_error("skip"))


def test_an_archive_that_is_none_takes_no_sample_of_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(b"no archive" * 200)
    paths = [archive(tmp_path / "a.tar"), str(tmp_path / "b.tar"), archive(tmp_path / "c.tar")]
    check("map", paths, [f"{n}{name}" for name in "ac" for n in range(4)], 1)


def test_the_rest_of_a_sample_that_is_wrong_itself_goes_with_it() -> None:
    pairs = [("0.a", 0), ("1.a", 1), ("1.b", 1), ("1.a", 2), ("1.c", 1), ("2.a", 2)]
    stream = iterate(IterableWrapper(pairs).webdataset().on_error("skip"))
    assert [sample["__key__"] for sample in stream] == ["0", "2"]
    assert left_out(stream.state_dict())[0] == 1


def test_what_is_no_pair_is_refused() -> None:
    def named(number: int) -> tuple[str, int]:
        return f"{number // 2}.{number % 2}", 6 // (number - 3)

    node = IterableWrapper(range(6)).map(named).webdataset().on_error("skip")
    with pytest.raises(ZeroDivisionError) as caught:
        list(node)
    assert "cannot tell whose sample" in caught.value.__notes__[-1]


@pytest.mark.parametrize("forged", [1, ["0"], b"0"])
def test_L8_a_key_that_is_none_is_refused(forged: Any) -> None:
    node = IterableWrapper([("0.a", 0)]).webdataset()
    with pytest.raises(StateError):
        iterate(node).load_state_dict(iterate(node).state_dict() | {"broken": forged})
