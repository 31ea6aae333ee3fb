"""``load_from_tar``: exact within an archive; damage is never taken for an end."""

from __future__ import annotations

import io
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.formats.test_tar import linked, tar_of
from torchpipe.errors import StateError
from torchpipe.iter import FileLister, IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.state import encode
from torchpipe.testing import CountingSource, check_node


def write_tar(path: Path, members: dict[str, bytes], compression: str = "") -> str:
    with tarfile.open(path, f"w:{compression}") as archive:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return str(path)


@pytest.fixture
def archives(tmp_path: Path) -> list[str]:
    contents = [
        {f"{number}/{name}.txt": f"{number}{name}".encode() * 400 for name in "abc"[:length]}
        for number, length in enumerate([3, 0, 2])
    ]
    return [write_tar(tmp_path / f"{number}.tar", members) for number, members in enumerate(contents)]


@pytest.mark.parametrize("mode", ["r:*", "r|*"])
@pytest.mark.parametrize("compression", ["", "gz", "bz2", "xz"])
def test_L2_exact_resume(tmp_path: Path, compression: str, mode: str) -> None:
    members = [{f"{number}{name}": name.encode() * 999 for name in "abc"} for number in range(2)]
    paths = [write_tar(tmp_path / f"{number}.tar", item, compression) for number, item in enumerate(members)]
    check_node(lambda: CountingSource(paths).open_files("b").load_from_tar(mode), epochs=[0], num_shards=1)


def test_L2_exact_resume_in_a_pipeline(archives: list[str]) -> None:
    folder = Path(archives[0]).parent
    check_node(
        lambda: (
            FileLister(folder, "*.tar")
            .shuffle()
            .sharding_filter()
            .open_files("b")
            .load_from_tar()
            .map(lambda pair: (pair[0], pair[1].read()))
            .shuffle(buffer_size=2)
        )
    )


def test_members(archives: list[str]) -> None:
    pairs = [
        (path, stream.read()) for path, stream in iterate(IterableWrapper(archives).open_files("b").load_from_tar())
    ]
    assert [path.removeprefix(archives[0]) for path, _ in pairs[:3]] == ["/0/a.txt", "/0/b.txt", "/0/c.txt"]
    assert [content[:2] for _, content in pairs] == [b"0a", b"0b", b"0c", b"2a", b"2b"]


def test_streams_may_be_read_after_the_next_one_was_pulled(archives: list[str]) -> None:
    items = list(IterableWrapper(archives).open_files("b").load_from_tar())
    assert [stream.read()[:2] for _, stream in items] == [b"0a", b"0b", b"0c", b"2a", b"2b"]


def read_whole(stream: Any) -> bytes:
    content: bytes = stream.read()
    return content


@pytest.mark.parametrize("compression", ["", "gz"])
def test_streams_may_be_read_in_threads_while_the_archive_goes_on(tmp_path: Path, compression: str) -> None:
    expected = {f"{number}": b"%d" % number * 20_000 for number in range(40)}
    path = write_tar(tmp_path / "x.tar", expected, compression)
    node = IterableWrapper([path]).open_files("b").load_from_tar()
    with ThreadPoolExecutor(4) as pool:
        reading = [(name, pool.submit(read_whole, stream)) for name, stream in iterate(node)]
        assert {name.rpartition("/")[2]: read.result() for name, read in reading} == expected


def test_a_stream_is_read_in_parts_from_any_place(archives: list[str]) -> None:
    (_, stream), *_ = IterableWrapper(archives).open_files("b").load_from_tar()
    assert stream.seek(-3, io.SEEK_END) == 797
    assert (stream.read(), stream.read(1)) == (b"0a0"[1:] + b"a", b"")
    assert (stream.seek(2), stream.read(2), stream.tell()) == (2, b"0a", 4)


def test_L5_the_state_does_not_hold_parts(archives: list[str]) -> None:
    iterator = iterate(IterableWrapper(archives).open_files("b").load_from_tar())
    iterator.drop(4)
    assert len(encode(iterator.state_dict())) < 20_000  # the global random states
    iterator.close()


def test_other_streams_than_files(archives: list[str]) -> None:
    class Socket(io.RawIOBase):
        """Can be read forwards only."""

        def __init__(self, content: bytes) -> None:
            self.content = io.BytesIO(content)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            return self.content.readinto(buffer)

    content = Path(archives[0]).read_bytes()
    for stream in (io.BytesIO(content), Socket(content)):
        node = IterableWrapper([("x.tar", stream)], deepcopy=False).load_from_tar()
        assert [(path, part.read()[:2]) for path, part in node] == [
            ("x.tar/0/a.txt", b"0a"),
            ("x.tar/0/b.txt", b"0b"),
            ("x.tar/0/c.txt", b"0c"),
        ]


def read_all(path: Path) -> list[bytes]:
    iterator = iterate(IterableWrapper([str(path)]).open_files("b").load_from_tar())
    with iterator:
        return [stream.read() for _, stream in iterator]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 19))
def test_L7_an_archive_cut_anywhere_is_an_error(archives: list[str], block: int) -> None:
    """Each header and each file is a few blocks of 512 bytes; ``tarfile`` alone takes some cuts for the end."""
    whole = Path(archives[0]).read_bytes()
    cut = Path(archives[0]).with_suffix(".cut")
    end = len(whole.rstrip(b"\0"))
    size = min(block * 512, end - 101)
    for length in (size, size + 100):
        cut.write_bytes(whole[:length])
        with pytest.raises(EOFError, match="is cut off"):  # at the next member, or where its content is read
            read_all(cut)


@pytest.mark.parametrize("compression", ["gz", "xz"])
def test_L7_a_compressed_archive_cut_off_is_an_error(tmp_path: Path, compression: str) -> None:
    path = write_tar(tmp_path / "x.tar", {name: bytes(range(256)) * 50 for name in "abc"}, compression)
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: len(content) // 2])
    with pytest.raises(EOFError, match="is cut off"):
        read_all(Path(path))


def test_L7_a_damaged_header_in_the_middle_is_an_error(archives: list[str]) -> None:
    content = bytearray(Path(archives[0]).read_bytes())
    start = content.index(b"0/b.txt")
    content[start : start + 4] = b"\xff\xff\xff\xff"
    Path(archives[0]).write_bytes(bytes(content))
    iterator = iterate(IterableWrapper(archives).open_files("b").load_from_tar())
    next(iterator)
    with pytest.raises(ValueError, match=f"{archives[0]} is damaged: there is no header at byte 2048") as caught:
        next(iterator)
    assert caught.value.__notes__ == [f"TarArchiveLoader: while reading {archives[0]}, file 1 (byte 2048)"]


def test_L7_what_is_no_archive_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").touch()
    for name in ("text", "empty"):
        with pytest.raises(EOFError) as caught:
            read_all(tmp_path / name)
        assert str(tmp_path / name) in caught.value.__notes__[0]


def test_L6_streams_are_closed_at_the_end_and_by_close(archives: list[str]) -> None:
    opener = IterableWrapper(archives).open_files("b")
    opened = []

    def note(pair: Any) -> Any:
        opened.append(pair[1])
        return pair

    iterator = iterate(opener.map(note).load_from_tar())
    for _, stream in iterator:
        stream.close()
    assert all(stream.closed for stream in opened)
    iterator = iterate(opener.map(note).load_from_tar())
    _, part = next(iterator)
    iterator.close()
    assert opened[-1].closed
    del part


def test_len_is_what_was_said(archives: list[str]) -> None:
    node = IterableWrapper(archives).open_files("b")
    assert len(node.load_from_tar(length=5)) == 5
    with pytest.raises(TypeError, match="pass length="):
        len(node.load_from_tar())


@pytest.mark.parametrize("item", ["x.tar", ("x.tar",), (3, io.BytesIO()), ("x.tar", "content")])
def test_wrong_items_are_refused(item: Any) -> None:
    with pytest.raises(TypeError, match="load_from_tar needs"):
        list(IterableWrapper([item], deepcopy=False).load_from_tar())


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_L5_a_resume_goes_to_the_place_in_the_archive(tmp_path: Path, format: int) -> None:
    path = tmp_path / "long.tar"
    with tarfile.open(path, "w", format=format, pax_headers={"comment": "of all"}) as archive:
        for number in range(200):
            info = tarfile.TarInfo(f"{'x' * 120}/{number}")  # a name that takes a header of its own
            info.size = 5000
            archive.addfile(info, io.BytesIO(b"%5000d" % number))
    node = IterableWrapper([str(path)]).open_files("b").load_from_tar()
    iterator = iterate(node)
    iterator.drop(197)
    read: list[int] = []

    class Counting(io.FileIO):
        def readinto(self, buffer: Any) -> Any:
            read.append(super().readinto(buffer))
            return read[-1]

    opened = IterableWrapper([str(path)]).map(lambda name: (name, io.BufferedReader(Counting(name), 512)))
    resumed = iterate(opened.load_from_tar())
    resumed.load_state_dict(iterator.state_dict() | {"inputs": [{"inputs": [{"position": 0}]}]})
    contents = [(name, stream.read()) for name, stream in resumed]
    assert contents == [(name, stream.read()) for name, stream in iterator]
    assert [int(content) for _, content in contents] == [197, 198, 199]
    assert sum(read) < 40_000  # of a million


def test_L8_a_forged_place_is_refused(archives: list[str]) -> None:
    node = IterableWrapper(archives).open_files("b").load_from_tar()
    iterator = iterate(node)
    next(iterator)
    for change in ({"at": [100]}, {"at": [1 << 61]}, {"at": [-1]}, {"at": 3}, {"file": -1}, {"file": "1"}):
        state = iterator.state_dict()
        state["iterator"]["place"] |= change
        resumed = iterate(node)
        resumed.load_state_dict(state)
        with pytest.raises(StateError):
            next(resumed)
    iterator.close()


def test_links_are_the_files_that_they_name(tmp_path: Path) -> None:
    members: Any = [("0.txt", tarfile.REGTYPE, b"zero")]
    members += [(f"{n}.txt", tarfile.LNKTYPE, "0.txt") for n in range(1, 7)]
    path = linked(tmp_path / "links.tar", tarfile.GNU_FORMAT, members)
    streams = IterableWrapper([str(path)]).open_files("b").load_from_tar().map(lambda pair: pair[1].read())
    assert list(streams) == [b"zero"] * 7


def test_a_link_to_nothing_is_an_error_of_its_own_file_alone(tmp_path: Path) -> None:
    members: Any = [
        ("a.txt", tarfile.REGTYPE, b"a"),
        ("b.txt", tarfile.SYMTYPE, "nothing.txt"),
        ("c.txt", tarfile.SYMTYPE, "b.txt"),
        ("d.txt", tarfile.LNKTYPE, "a.txt"),
    ]
    path = str(linked(tmp_path / "links.tar", tarfile.GNU_FORMAT, members))
    streams = IterableWrapper([path]).open_files("b").load_from_tar().on_error("skip", budget=3)
    assert [(name[-5:], stream.read()) for name, stream in streams] == [("a.txt", b"a"), ("d.txt", b"a")]


def test_names_with_dots_are_errors_of_samples(tmp_path: Path) -> None:
    dots = tar_of(tmp_path / "dots.tar", [f"clip_v1.0_{n}.txt" for n in range(80)])
    with pytest.raises(ValueError, match="clip_v1' has more than 60 files, .*the only dot stands before"):
        list(IterableWrapper([dots]).open_files("b").load_from_tar().webdataset())
