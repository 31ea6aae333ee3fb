"""``TarFiles``: what ``tarfile`` finds in each format; damage anywhere is an error that names the archive."""

from __future__ import annotations

import gzip
import io
import random
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.errors import StateError
from torchpipe.formats.storage.content import Content
from torchpipe.formats.tar import TarFiles
from torchpipe.iter import IterableWrapper, WebDatasetReader
from torchpipe.testing import check_node

NAMES = [
    "a.txt",
    "folder/b.jpg",
    "x" * 90 + "/" + "y" * 95 + ".txt",
    "z" * 300 + ".txt",
    "ä/ö.txt",
    "empty",
    "./dot.txt",
]


def write(path: Path, form: int) -> dict[str, bytes]:
    contents = {name: random.Random(name).randbytes(len(name) * 37 % 2_000) for name in NAMES}
    contents["empty"] = b""
    with tarfile.open(path, "w", format=form, encoding="utf-8") as archive:
        for kind, name in ((tarfile.DIRTYPE, "folder"), (tarfile.DIRTYPE, "other"), (tarfile.FIFOTYPE, "pipe")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "a.txt"
            archive.addfile(info)
        for name, content in contents.items():
            if form == tarfile.USTAR_FORMAT and len(name) > 250:
                continue
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), 1.5 if form == tarfile.PAX_FORMAT else 1
            archive.addfile(info, io.BytesIO(content))
    return contents


def found(path: Path) -> dict[str, bytes]:
    content = Content(str(path))
    files = TarFiles(content)
    try:
        contents = {}
        while (member := files.next()) is not None:
            contents[member.name] = files.read(member)
        return contents
    finally:
        content.close()


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_all_formats_are_read_from_every_file_on(tmp_path: Path, form: int) -> None:
    path = tmp_path / "a.tar"
    contents = write(path, form)
    with tarfile.open(path) as archive:
        names = [member.name for member in archive if member.isfile()]
    read = found(path)
    assert list(read) == names
    assert read == {name: contents[name] for name in names}
    content = Content(str(path))
    files = TarFiles(content)
    starts = []
    while (member := files.next()) is not None:
        starts.append((member.header, member.name))
    content.close()
    for start, name in starts:
        content = Content(str(path))
        files = TarFiles(content)
        files.stand_at(content.go_to([start]))
        first = files.next()
        assert first is not None
        assert (first.name, files.read(first)) == (name, contents[name])
        content.close()


def test_what_tar_itself_writes_is_read(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(str(number) * number)
    for option in ("--format=v7", "--format=gnu", "--format=pax", "--format=ustar"):
        subprocess.run(["tar", option, "-cf", "a.tar", "0.txt", "1.txt", "2.txt"], cwd=tmp_path, check=True)
        assert found(tmp_path / "a.tar") == {"0.txt": b"", "1.txt": b"1", "2.txt": b"22"}


def test_a_size_beyond_octal_numbers_is_read(tmp_path: Path) -> None:
    info = tarfile.TarInfo("large")
    info.size = 9 << 30
    header = info.tobuf(tarfile.GNU_FORMAT)
    assert header[124] == 0x80
    (tmp_path / "a.tar").write_bytes(header)
    content = Content(str(tmp_path / "a.tar"))
    member = TarFiles(content).next()
    assert member is not None
    assert member.size == 9 << 30
    content.close()


def test_L7_an_archive_that_is_cut_off_anywhere_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    write(path, tarfile.GNU_FORMAT)
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0"))
    for length in [*range(0, end, 97), end, end // 512 * 512]:
        path.write_bytes(whole[:length])
        with pytest.raises(EOFError, match=r"a\.tar is cut off"):
            found(path)
    path.write_bytes(whole[: end // 512 * 512 + 1024])
    assert len(found(path)) == len(NAMES)  # one block of zeros is an end


def test_L7_damaged_headers_are_errors_that_name_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    write(path, tarfile.PAX_FORMAT)
    whole = path.read_bytes()
    content = Content(str(path))
    files = TarFiles(content)
    starts = []
    while (member := files.next()) is not None:
        starts.append(member.header)
    content.close()
    for start in starts:
        for place in (0, 50, 124, 135, 148, 156, 257, 511):
            changed = bytearray(whole)
            changed[start + place] ^= 0x55
            path.write_bytes(changed)
            with pytest.raises((ValueError, EOFError), match=r"a\.tar is (damaged|cut off)"):
                found(path)


def test_archives_one_behind_the_other_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", tarfile.GNU_FORMAT)
    (tmp_path / "b.tar").write_bytes((tmp_path / "a.tar").read_bytes() * 2)
    with pytest.raises(ValueError, match=r"b\.tar goes on behind its end at byte \d+: .*--concatenate"):
        found(tmp_path / "b.tar")


def test_L8_forged_places_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", tarfile.GNU_FORMAT)
    for place in ([3], [1 << 50], [-512], ["512"]):
        content = Content(str(tmp_path / "a.tar"))
        with pytest.raises(StateError, match="a.tar"):
            TarFiles(content).stand_at(content.go_to(place))
        content.close()


LINKED = [
    ("a/0.txt", tarfile.REGTYPE, b"zero"),
    ("a/1.txt", tarfile.LNKTYPE, "a/0.txt"),
    ("a/2.txt", tarfile.SYMTYPE, "0.txt"),
    ("b/3.txt", tarfile.SYMTYPE, "../a/1.txt"),  # a link to a link
    ("latest", tarfile.SYMTYPE, "a"),  # to a folder: no file
    ("a/4.txt", tarfile.REGTYPE, b"four"),
    ("x" * 150 + ".txt", tarfile.LNKTYPE, "a/4.txt"),
]


def linked(path: Path, form: int, members: Any = LINKED) -> Path:
    with tarfile.open(path, "w", format=form) as archive:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            info.linkname = "" if kind == tarfile.REGTYPE else content
            archive.addfile(info, io.BytesIO(content) if kind == tarfile.REGTYPE else None)
    return path


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_link_is_the_file_that_it_names_from_every_place_on(tmp_path: Path, form: int) -> None:
    members = LINKED if form != tarfile.USTAR_FORMAT else LINKED[:-1]
    path = linked(tmp_path / "links.tar", form, members)
    read = found(path)
    expected = {"a/0.txt": b"zero", "a/1.txt": b"zero", "a/2.txt": b"zero", "b/3.txt": b"zero", "a/4.txt": b"four"}
    assert read == expected | ({"x" * 150 + ".txt": b"four"} if form != tarfile.USTAR_FORMAT else {})
    content = Content(str(path))
    files = TarFiles(content)
    starts = []
    while (member := files.next()) is not None:
        starts.append((member.header, member.name))
    content.close()
    for header, name in starts:
        content = Content(str(path))
        content.pass_over(header)
        files = TarFiles(content)
        files.stand_at(header)
        member = files.next()
        assert member is not None
        assert (member.name, files.read(member)) == (name, read[name])
        content.close()


@pytest.mark.parametrize("target", ["missing.txt", "../outside.txt", "later.txt"])
def test_a_link_to_what_is_not_there_names_both(tmp_path: Path, target: str) -> None:
    members = [("0.txt", tarfile.SYMTYPE, target), ("later.txt", tarfile.REGTYPE, b"")]
    path = linked(tmp_path / "links.tar", tarfile.GNU_FORMAT, members)
    with pytest.raises(ValueError, match=rf"links.tar holds '0.txt' as a link to '{target}', which is no file"):
        found(path)


def test_links_come_out_in_every_shard(tmp_path: Path) -> None:
    members = [("0.txt", tarfile.REGTYPE, b"zero")]
    members += [(f"{n}.txt", tarfile.LNKTYPE, "0.txt") for n in range(1, 7)]  # type: ignore[misc]
    path = linked(tmp_path / "links.tar", tarfile.GNU_FORMAT, members)
    samples = IterableWrapper([str(path)]).read_webdataset()
    assert [(sample["__key__"], sample["txt"]) for sample in samples] == [(str(n), "zero") for n in range(7)]
    divided = IterableWrapper([str(path)]).read_webdataset().sharding_filter().map(lambda sample: sample["__key__"])
    loader = DataLoader2(divided, reading_service=InProcessReadingService(num_shards=3))
    stream = iter(loader)
    begun = [next(stream) for _ in range(3)]
    again = DataLoader2(divided, reading_service=InProcessReadingService(num_shards=3))
    again.load_state_dict(loader.state_dict())
    assert [*begun, *again] == [str(n) for n in range(7)]


def test_a_link_to_nothing_is_an_error_of_its_own_file_alone(tmp_path: Path) -> None:
    members: Any = [
        ("a.txt", tarfile.REGTYPE, b"a"),
        ("latest", tarfile.SYMTYPE, "run5"),  # of no sample
        ("here", tarfile.SYMTYPE, "."),  # a folder
        ("b.txt", tarfile.SYMTYPE, "nothing.txt"),
        ("c.txt", tarfile.SYMTYPE, "b.txt"),
        ("d.txt", tarfile.LNKTYPE, "a.txt"),
    ]
    path = str(linked(tmp_path / "links.tar", tarfile.GNU_FORMAT, members))
    samples = IterableWrapper([path]).read_webdataset()
    stream = iter(samples)
    assert next(stream)["__key__"] == "a"
    with pytest.raises(ValueError, match=r"links.tar holds 'b.txt' as a link to 'nothing.txt', which is no file"):
        next(stream)
    assert [sample["__key__"] for sample in samples.on_error("skip", budget=2)] == ["a", "d"]
    check_node(lambda: IterableWrapper([path]).read_webdataset().on_error("skip").sharding_filter(), epochs=[0])
    assert [sample["__key__"] for sample in IterableWrapper([path]).read_webdataset(["cls"]).on_error("skip")] == []


def tar_of(path: Path, names: list[str]) -> str:
    return str(linked(path, tarfile.GNU_FORMAT, [(name, tarfile.REGTYPE, name.encode()) for name in names]))


def test_names_with_dots_and_archives_that_are_not_sorted_are_errors(tmp_path: Path) -> None:
    dots = tar_of(tmp_path / "dots.tar", [f"clip_v1.0_{n}.txt" for n in range(80)])
    for graph in (
        IterableWrapper([dots]).read_webdataset(),
        IterableWrapper([dots]).read_webdataset(["txt"]),
    ):
        with pytest.raises(ValueError, match="clip_v1' has more than 60 files, .*the only dot stands before"):
            list(graph)
    torn = tar_of(tmp_path / "torn.tar", ["0.a", "1.a", "0.b", "1.b", "2.a"])
    with pytest.raises(ValueError, match="sample '0' stands in the archive in two places: .*--sort=name"):
        list(IterableWrapper([torn]).read_webdataset())
    keys = IterableWrapper([torn]).read_webdataset().map(lambda sample: sample["__key__"]).on_error("skip")
    assert list(keys) == ["0", "1", "2"]


@pytest.mark.parametrize("record_bytes", [10_240, 512 << 10, 1 << 20])
@pytest.mark.parametrize("packed", [False, True])
def test_an_archive_behind_another_is_an_error_however_far_the_first_is_padded(
    tmp_path: Path, record_bytes: int, packed: bool
) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"), io.BytesIO())
    one = made.getvalue().rstrip(b"\0")
    one += bytes(record_bytes - len(one))
    for name, content in (("one", one), ("two", one + made.getvalue())):
        path = tmp_path / (f"{name}.tar.gz" if packed else f"{name}.tar")
        path.write_bytes(gzip.compress(content, 1) if packed else content)
        samples = WebDatasetReader(str(path))
        if name == "one":
            assert [sample["__key__"] for sample in samples] == ["a"]
        else:
            with pytest.raises(ValueError, match="goes on behind its end"):
                list(samples)
