"""``torchpipe.readers``: the bases of a reader of a user's own."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from torchpipe import functional_datapipe
from torchpipe.iter import IterableWrapper
from torchpipe.readers import ContentReader, ContentRecords
from torchpipe.testing import check_node


class Numbers(ContentRecords[int]):
    unit = "number"

    def __next__(self) -> int:
        data = self.content.read(4)
        if not data:
            raise StopIteration
        if len(data) < 4:
            raise EOFError(f"{self.path} is cut off within the number at byte {self.offset}")
        self.advance(4)
        return int(struct.unpack("<i", data)[0])


@functional_datapipe("read_numbers_of_a_test")
class NumberReader(ContentReader[int]):
    def __init__(self, paths: Any) -> None:
        super().__init__(paths, "infer", None)

    def records(self, item: object) -> Numbers:
        return Numbers(self.content(item))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate("ab"):
        (tmp_path / name).write_bytes(struct.pack("<3i", *range(3 * number, 3 * number + 3)))
    return tmp_path


def test_L2_exact_resume(folder: Path) -> None:
    check_node(lambda: NumberReader(f"{folder}/*"))
    check_node(lambda: NumberReader(f"{folder}/*").sharding_filter(), epochs=[0], num_shards=2)
    assert sorted(NumberReader(f"{folder}/*").shard_pieces()) == list(range(6))


def test_a_reader_is_named_by_its_class_where_it_has_no_other_name(folder: Path) -> None:
    with pytest.raises(TypeError, match="NumberReader needs paths"):
        list(NumberReader(IterableWrapper([1])))


def test_a_file_that_is_cut_off_says_where(folder: Path) -> None:
    (folder / "a").write_bytes(b"123456")
    with pytest.raises(EOFError, match="within the number at byte 4"):
        list(NumberReader(f"{folder}/a"))
