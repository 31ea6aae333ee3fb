"""``on_error("skip")`` behind readers of files: a bad record is left out alone, what is cut off with all behind it."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torchpipe import IterDataPipe
from torchpipe.formats.tfrecord import write_record
from torchpipe.iter import (
    CsvReader,
    JsonlReader,
    ParquetReader,
    TextLineReader,
    TFRecordReader,
    WebDatasetReader,
    ZipReader,
)
from torchpipe.node.datapipe import iterate
from torchpipe.state import left_out
from torchpipe.testing import check_node

BAD = {1, 2, 6}  # of the records 0 to 6; another file with 7 and 8 follows


def jsonl(folder: Path) -> IterDataPipe[Any]:
    lines = ["{bad" if number in BAD else str(number) for number in range(7)]
    (folder / "0").write_text("\n\n".join(lines) + "\n")
    (folder / "1").write_text("7\n8")
    return JsonlReader([folder / "0", folder / "1"])


def lines(folder: Path) -> IterDataPipe[Any]:
    first = [b"\xff" if number in BAD else b"%d" % number for number in range(7)]
    (folder / "0.gz").write_bytes(gzip.compress(b"\n".join(first)))
    (folder / "1").write_text("7\n8")
    return TextLineReader([folder / "0.gz", folder / "1"])


def csv(folder: Path) -> IterDataPipe[Any]:
    rows = [f'"{number}"' + ",x" * (number not in BAD) for number in range(7)]
    (folder / "0").write_text("\n".join(["id,word", *rows]))
    (folder / "1").write_text("id,word\n7,x\n8,x\n")
    return CsvReader([folder / "0", folder / "1"], ["id"])


def shards(folder: Path) -> IterDataPipe[Any]:
    for shard, numbers in enumerate((range(7), range(7, 9))):
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for number in numbers:
                endings = {1: ["id"], 2: ["id", "txt", "id"], 6: ["txt", "id"]}.get(number, ["id", "txt"])
                for ending in endings:
                    content = b"\xff" if number == 6 else b"%d" % number
                    info = tarfile.TarInfo(f"{number}.{ending}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    return WebDatasetReader([folder / "0.tar", folder / "1.tar"], ["id", "txt"])


def records(folder: Path) -> IterDataPipe[Any]:
    for name, numbers in (("0", range(7)), ("1", range(7, 9))):
        with open(folder / name, "wb") as file:
            for number in numbers:
                write_record(file, b"%d" % number)
                if number in BAD:
                    file.seek(-1, io.SEEK_CUR)
                    file.write(b"?")
    return TFRecordReader([folder / "0", folder / "1"], parse=False)


def archives(folder: Path) -> IterDataPipe[Any]:
    for name, numbers in (("0.zip", range(7)), ("1.zip", range(7, 9))):
        with zipfile.ZipFile(folder / name, "w") as archive:
            for number in numbers:
                archive.writestr(str(number), b"content %d" % number)
        content = (folder / name).read_bytes()
        for number in BAD:
            content = content.replace(b"content %d" % number, b"another %d" % number)
        (folder / name).write_bytes(content)
    return ZipReader([folder / "0.zip", folder / "1.zip"])


def rows(folder: Path) -> IterDataPipe[Any]:
    words = [b"\xff" if number in BAD else b"x" for number in range(9)]
    text = pa.StringArray.from_buffers(9, *pa.array(words, pa.binary()).buffers()[1:])
    table = pa.table({"id": list(range(9)), "word": text})
    pq.write_table(table.slice(0, 7), folder / "0", row_group_size=4)
    pq.write_table(table.slice(7), folder / "1")
    return ParquetReader([folder / "0", folder / "1"])


def batches(folder: Path) -> IterDataPipe[Any]:
    values = [None if number in BAD else number for number in range(9)]
    pq.write_table(pa.table({"id": values[:7]}), folder / "0", row_group_size=4)
    pq.write_table(pa.table({"id": values[7:]}), folder / "1")
    return ParquetReader([folder / "0", folder / "1"], batch_size=1)


def number_of(item: Any) -> int:
    if isinstance(item, tuple):
        return int(item[0][-1])
    return int(item["id"] if isinstance(item, dict) else item)


@pytest.mark.nightly
@pytest.mark.parametrize("make", [jsonl, lines, csv, shards, records, archives, rows, batches])
def test_a_bad_record_is_left_out_alone(make: Callable[[Path], Any], tmp_path: Path) -> None:
    reader = make(tmp_path)
    good = [number for number in range(9) if number not in BAD]
    stream = iterate(reader.on_error("skip"))
    assert [number_of(item) for item in stream] == good
    count, noted = left_out(stream.state_dict())
    assert count == len(BAD)
    assert len({entry.item for entry in noted}) == len(BAD), "each is named by its place"
    assert all(str(tmp_path / "0") in entry.item for entry in noted)
    check_node(lambda: reader.on_error("skip"), epochs=[0])
    check_node(lambda: reader.on_error("skip").sharding_filter(), epochs=[0], num_shards=2)
    for shard in range(2):  # dealt as they stand in the files: nobody's records depend on whether another's are bad
        mine = iterate(reader.on_error("skip").sharding_filter(), shard=shard, num_shards=2)
        assert [number_of(item) for item in mine] == [number for number in good if number % 2 == shard]


def test_what_is_cut_off_is_left_out_with_what_is_behind_it(tmp_path: Path) -> None:
    content = gzip.compress("".join(f"{number}\n" for number in range(4_000)).encode())
    (tmp_path / "0.gz").write_bytes(content[: len(content) // 2])
    (tmp_path / "1").write_text("-1\n")
    reader = JsonlReader([tmp_path / "0.gz", tmp_path / "1"])
    stream = iterate(reader.on_error("skip"))
    got = list(stream)
    assert got == [*range(len(got) - 1), -1]
    count, (noted,) = left_out(stream.state_dict())
    assert count == 1
    assert "and what is behind it" in noted.item
    sharded = iterate(reader.on_error("skip").sharding_filter(), shard=1, num_shards=2)
    with pytest.raises(EOFError) as caught:  # how many records there are would be known to nobody
        list(sharded)
    assert any("it does not go on after this" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_wrong_record_over_many_members_goes_alone(tmp_path: Path, ending: str) -> None:
    wrong = "".join(f"{number:x}" for number in range(150_000))  # no JSON
    content = f"1\n2\n{wrong}\n3\n4\n".encode()
    if ending:  # as bgzip writes it
        content = b"".join(gzip.compress(content[at : at + 32_768]) for at in range(0, len(content), 32_768))
    (tmp_path / f"a{ending}").write_bytes(content)
    iterator = iterate(JsonlReader([tmp_path / f"a{ending}"]).on_error("skip"))
    assert list(iterator) == [1, 2, 3, 4]
    assert left_out(iterator.state_dict())[1][0].item.endswith("line 3 (byte 4)'")
