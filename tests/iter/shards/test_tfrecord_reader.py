"""``read_tfrecord`` and ``TFRecordFile``: in order and by number, from every record on."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from tests.formats.test_tfrecord import EXAMPLE, WRITTEN, records
from tests.reads import bytes_read_by
from torchpipe.errors import StateError
from torchpipe.formats.tfrecord import write_record
from torchpipe.iter import PathList, TFRecordReader
from torchpipe.map import TFRecordFile
from torchpipe.node.datapipe import iterate
from torchpipe.testing import check_node


def write(path: Path, contents: list[bytes]) -> Path:
    with open(path, "wb") as file:
        for content in contents:
            write_record(file, content)
    return path


def texts(first: int, count: int) -> list[bytes]:
    return [f"record {number}".encode() * (number % 3) for number in range(first, first + count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "0.tfrecord", texts(0, 7))
    write(tmp_path / "1.tfrecord", [])
    write(tmp_path / "2.tfrecord", texts(7, 5))
    return tmp_path


def test_examples_and_bytes(folder: Path) -> None:
    assert list(TFRecordReader(folder / "*", parse=False)) == texts(0, 12)
    (folder / "real").write_bytes(WRITTEN)
    example, _ = PathList(str(folder / "real")).read_tfrecord()
    assert example["label"].tolist() == EXAMPLE["label"].tolist()
    (only,) = TFRecordReader(write(folder / "one", records(WRITTEN)[:1]), {"label": ((), None)})
    assert int(only["label"]) == 3
    assert [int(item["label"]) for item in TFRecordFile(folder / "one", {"label": ((), None)}).to_iter_datapipe()] == [
        3
    ]


def test_L2_exact_resume(folder: Path) -> None:
    check_node(lambda: TFRecordReader(folder / "*", parse=False), epochs=[0], positions=14)
    check_node(
        lambda: TFRecordReader(folder / "*", parse=False).sharding_filter(), epochs=[0], num_shards=3, positions=5
    )
    (folder / "a.gz").write_bytes(gzip.compress((folder / "0.tfrecord").read_bytes()))
    check_node(lambda: TFRecordReader(folder / "a.gz", parse=False).sharding_filter(), epochs=[0], positions=4)


def test_by_number(folder: Path) -> None:
    node = TFRecordFile(folder / "*", parse=False)
    assert [node[number] for number in range(len(node))] == texts(0, 12)
    check_node(lambda: TFRecordFile(folder / "*", parse=False).shuffle().sharding_filter(), epochs=[0], positions=6)
    assert node[-1] == node[11]
    for wrong in (-13, 12):
        with pytest.raises(IndexError, match=f"Index {wrong} is out of range: TFRecordFile has 12 items"):
            node[wrong]


def test_an_index_beside_the_file_is_used_and_checked(folder: Path) -> None:
    sizes = [16 + len(text) for text in texts(0, 7)]
    lines = [f"{sum(sizes[:number])} {size}\n" for number, size in enumerate(sizes)]
    for name in ("0.tfrecord.idx", "0.idx"):
        (folder / name).write_text("".join(lines))
        node = TFRecordFile(folder / "0.tfrecord", parse=False)
        assert [node[number] for number in range(7)] == texts(0, 7)
        for wrong in (lines[:-1], lines[1:], ["no index"], ["1\n"]):
            (folder / name).write_text("".join(wrong))
            with pytest.raises(ValueError, match=r"\.idx (does not fit|is no index)"):
                TFRecordFile(folder / "0.tfrecord")
        (folder / name).unlink()
    (folder / "1.idx").write_text("")
    assert len(TFRecordFile(folder / "1.tfrecord")) == 0


def test_L5_a_resume_and_a_shard_do_not_read_what_they_pass_over(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [bytes(400_000)] * 24)
    node = TFRecordReader(path, parse=False, verify=False)
    iterator = iterate(node)
    costs = []
    for number in range(1, 23):
        next(iterator)
        if number % 7 == 1:
            again = iterate(node)
            again.load_state_dict(iterator.state_dict())
            costs.append(bytes_read_by(lambda again=again: next(again)))
            again.close()
    iterator.close()
    assert max(costs) < 1_100_000  # of 9.6 MB
    assert max(costs) - min(costs) < 300_000
    assert bytes_read_by(lambda: TFRecordFile(path)) < 200_000
    file = TFRecordFile(path, parse=False, verify=False)
    assert bytes_read_by(lambda: file[20]) < 700_000


def test_L7_damage_names_file_record_and_byte(folder: Path) -> None:
    path = folder / "0.tfrecord"
    whole = bytearray(path.read_bytes())
    whole[-10 - 16] ^= 1  # the last record has no data
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"0\.tfrecord is damaged: the data of the record at byte 112") as caught:
        list(TFRecordReader(folder / "*", parse=False))
    assert caught.value.__notes__ == [f"TFRecordReader: while reading {path}, record 5 (byte 112)"]
    assert len(list(TFRecordReader(folder / "*", parse=False, verify=False))) == 12
    path.write_bytes(whole[:-20])
    for read in (lambda: list(TFRecordReader(path, parse=False)), lambda: TFRecordFile(path)):
        with pytest.raises(EOFError, match=r"0\.tfrecord is cut off within the record at byte"):
            read()
    with pytest.raises(ValueError, match=r"no tf\.train\.Example") as no_example:
        TFRecordFile(folder / "2.tfrecord")[1]
    assert "2.tfrecord, record 1 (byte " in no_example.value.__notes__[0]
    path.write_bytes(gzip.compress(b"abc"))
    with pytest.raises(ValueError, match=r"no TFRecord file: .*needs compression='gzip'"):
        list(TFRecordReader(path))


def test_L8_forged_states_are_refused(folder: Path) -> None:
    iterator = iterate(TFRecordReader(folder / "0.tfrecord", parse=False))
    next(iterator)
    good = iterator.state_dict()
    iterator.close()
    wrong: list[Any] = [{"at": [1 << 40], "record": 0}, {"at": [16], "record": -1}, {"at": "a", "record": 1}, {}, None]
    for place in wrong:
        again = iterate(TFRecordReader(folder / "0.tfrecord", parse=False))
        with pytest.raises(StateError):
            again.load_state_dict({**good, "iterator": {**good["iterator"], "place": place}})
            next(again)
        again.close()


def test_only_local_files_are_read_by_number() -> None:
    with pytest.raises(ValueError, match="TFRecordFile reads local files by number"):
        TFRecordFile("s3://bucket/a")
