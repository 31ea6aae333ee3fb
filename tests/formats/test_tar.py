"""``TarFiles``: what ``tarfile`` finds in each format; damage anywhere is an error that names the archive."""

from __future__ import annotations

import io
import random
import subprocess
import tarfile
from pathlib import Path

import pytest

from torchpipe.errors import StateError
from torchpipe.formats.places.content import Content
from torchpipe.formats.tar import TarFiles

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
        for kind, name in ((tarfile.DIRTYPE, "folder"), (tarfile.SYMTYPE, "link"), (tarfile.FIFOTYPE, "pipe")):
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
