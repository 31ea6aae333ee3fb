"""``read_zip``: files by the archive's table, from each on; a damaged one is named."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.reads import bytes_read_by
from torchpipe.errors import StateError
from torchpipe.iter import PathList, ZipReader
from torchpipe.node.datapipe import iterate
from torchpipe.testing import check_node


def write(path: Path, files: dict[str, bytes], **options: Any) -> Path:
    with zipfile.ZipFile(path, "w", **options) as archive:
        archive.mkdir("folder")
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, count in enumerate([4, 0, 3]):
        files = {f"folder/{name}.{'txt' if name % 2 else 'bin'}": bytes([number]) * name for name in range(count)}
        write(tmp_path / f"{number}.zip", files, compression=zipfile.ZIP_DEFLATED)
    return tmp_path


def test_files_come_in_the_order_of_the_table(folder: Path) -> None:
    found = list(ZipReader(folder / "*.zip"))
    assert found[2] == (f"{folder}/0.zip/folder/2.bin", b"\0\0")
    assert [len(content) for _, content in found] == [0, 1, 2, 3, 0, 1, 2]
    assert [len(content) for _, content in PathList(str(folder / "*")).read_zip("folder/*.txt")] == [1, 3, 1]


def test_L2_exact_resume(folder: Path) -> None:
    check_node(lambda: ZipReader(folder / "*.zip"), epochs=[0])
    check_node(lambda: ZipReader(folder / "*.zip").sharding_filter(), epochs=[0], num_shards=3, positions=4)


def test_L5_a_resume_and_a_shard_read_their_own_files_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zip", {f"{number}": bytes(400_000) for number in range(24)})
    node = ZipReader(path)
    iterator = iterate(node)
    for _ in range(20):
        next(iterator)
    again = iterate(node)
    again.load_state_dict(iterator.state_dict())
    assert bytes_read_by(lambda: next(again)) < 1_500_000
    again.close()
    iterator.close()
    assert bytes_read_by(lambda: list(iterate(node.sharding_filter(), shard=2, num_shards=8))) < 3_000_000


def test_L7_damage_names_archive_and_file(folder: Path) -> None:
    path = folder / "0.zip"
    whole = bytearray(path.read_bytes())
    place = whole.index(b"folder/3.txt") + 12
    whole[place] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"0\.zip is damaged at 'folder/3\.txt', or it cannot be read") as caught:
        list(ZipReader(folder / "*.zip"))
    assert caught.value.__notes__ == [f"ZipReader: while reading {path}, file 3"]
    for wrong in (b"", b"no archive", bytes(whole[:-4]), bytes(whole[:100])):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=r"0\.zip is no zip archive, or is cut off"):
            list(ZipReader(folder / "*.zip"))


def test_L8_forged_states_are_refused(folder: Path) -> None:
    iterator = iterate(ZipReader(folder / "0.zip"))
    next(iterator)
    good = iterator.state_dict()
    iterator.close()
    for place in ({"file": 9}, {"file": -1}, {"file": "1"}, {}):
        again = iterate(ZipReader(folder / "0.zip"))
        with pytest.raises(StateError):
            again.load_state_dict({**good, "iterator": {**good["iterator"], "place": place}})
            next(again)
        again.close()
