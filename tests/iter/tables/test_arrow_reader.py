"""``read_arrow``: both formats from every row on; what is cut off is never taken for the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import fsspec
import numpy as np
import pyarrow as pa
import pytest

from tests.reads import bytes_read_by
from torchpipe.errors import StateError
from torchpipe.iter import ArrowReader, PathList
from torchpipe.node.datapipe import iterate
from torchpipe.testing import check_node
from torchpipe.testing.compare import freeze

MAKERS = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}


def write(path: Path, kind: str, table: pa.Table, rows: int, **options: Any) -> None:
    with pa.OSFile(str(path), "wb") as sink, MAKERS[kind](sink, table.schema, **options) as writer:
        for first in range(0, len(table), rows):
            writer.write_table(table.slice(first, rows))


def table(first: int, count: int, words: bool = False) -> pa.Table:
    columns: dict[str, Any] = {"id": pa.array(range(first, first + count), pa.int64())}
    columns["name"] = pa.array([f"n{row % 3}" for row in range(count)], pa.string())
    if words:
        columns["name"] = columns["name"].dictionary_encode()
    return pa.table(columns)


@pytest.fixture(params=["file", "stream", "stream with dictionaries", "compressed stream"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    kind, words = request.param.split()[0], "dictionaries" in request.param
    options = {"options": pa.ipc.IpcWriteOptions(compression="zstd")} if kind == "compressed" else {}
    kind = "stream" if kind == "compressed" else kind
    write(tmp_path / "0.arrow", kind, table(0, 11, words), 4, **options)
    write(tmp_path / "1.arrow", kind, table(11, 0, words), 4, **options)
    write(tmp_path / "2.arrow", kind, table(11, 9, words), 5, **options)
    return tmp_path


def test_rows_and_batches(folder: Path) -> None:
    rows = list(ArrowReader(folder / "*"))
    assert [row["id"] for row in rows] == list(range(20))
    assert [row["name"] for row in rows][:4] == ["n0", "n1", "n2", "n0"]
    batches = [batch["id"].tolist() for batch in PathList(str(folder / "*")).read_arrow(["id"], batch_size=3)]
    assert batches == [[0, 1, 2], [3], [4, 5, 6], [7], [8, 9, 10], [11, 12, 13], [14, 15], [16, 17, 18], [19]]
    assert [row["id"] for row in ArrowReader(folder / "*", ["id"], filter=[("name", "==", "n2")])][:3] == [2, 5, 8]


@pytest.mark.nightly
def test_L2_exact_resume(folder: Path) -> None:
    check_node(lambda: ArrowReader(folder / "*", batch_size=2), epochs=[0], positions=15)
    check_node(lambda: ArrowReader(folder / "*").sharding_filter(), epochs=[0], num_shards=3, positions=8)


def test_L1_a_shard_has_every_nth(folder: Path) -> None:
    for keep in (None, [("id", ">", 4)]):
        node = ArrowReader(folder / "*", batch_size=2, filter=keep)
        whole = [freeze(item) for item in node]
        for shard in range(3):
            assert [freeze(item) for item in iterate(node.sharding_filter(), shard=shard, num_shards=3)] == whole[
                shard::3
            ]


@pytest.mark.parametrize("kind", MAKERS)
def test_L7_a_file_that_is_cut_off_anywhere_is_an_error_that_names_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.arrow"
    write(path, kind, table(0, 11), 4)
    whole = path.read_bytes()
    for length in [*range(0, len(whole) - 16, 11), *range(len(whole) - 16, len(whole))]:
        path.write_bytes(whole[:length])
        with pytest.raises((EOFError, ValueError), match=r"a\.arrow (is|has)"):
            list(ArrowReader(path))
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"a\.arrow has no column 'x': its columns are id, name"):
        list(ArrowReader(path, ["x"]))


def test_L7_a_damaged_header_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write(path, "stream", table(0, 11), 4)
    whole = path.read_bytes()
    failed = 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            list(ArrowReader(path))  # a changed value is not found: the format has no checksum
        except Exception as error:
            failed += 1
            assert "a.arrow" in " ".join([str(error), *getattr(error, "__notes__", ())])
    assert failed > 50


def test_what_datasets_wrote_is_read(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"id": list(range(2_500)), "text": ["x"] * 2_500}).save_to_disk(str(tmp_path))
    assert [row["id"] for row in ArrowReader(tmp_path / "*.arrow")] == list(range(2_500))


@pytest.mark.parametrize("kind", MAKERS)
def test_L5_resuming_reads_no_more_the_further_on(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.arrow"
    write(path, kind, pa.table({"noise": np.random.default_rng(0).integers(0, 1 << 62, 400_000)}), 10_000)
    node = ArrowReader(fsspec.filesystem("file").unstrip_protocol(str(path)), batch_size=10_000)  # read, not mapped
    iterator = iterate(node)
    costs = []
    for number in range(36):
        next(iterator)
        if number % 10 == 5:
            again = iterate(node)
            again.load_state_dict(iterator.state_dict())
            costs.append(bytes_read_by(lambda again=again: next(again)))
            again.close()
    iterator.close()
    # Of 3.2 MB: a buffer of 256 KiB and one batch; but a stream has no table, and is read into memory.
    assert max(costs) < (1_000_000 if kind == "file" else 4_000_000)
    assert max(costs) - min(costs) < 300_000


def test_L8_forged_states_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.arrow", "stream", table(0, 11), 4)
    iterator = iterate(ArrowReader(tmp_path / "a.arrow", batch_size=2))
    next(iterator)
    good = iterator.state_dict()
    iterator.close()
    for place in (
        {"block": 3, "row": 2},
        {"block": 4, "row": 0},
        {"block": 0, "row": 1},
        {"block": 0, "row": 6},
        {},
        3,
    ):
        again = iterate(ArrowReader(tmp_path / "a.arrow", batch_size=2))
        with pytest.raises(StateError):
            again.load_state_dict({**good, "iterator": {**good["iterator"], "place": place}})
            next(again)
        again.close()


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("kind", ["file", "stream"])
def test_L2_compressed_buffers_dictionaries_that_grow_and_views(tmp_path: Path, kind: str, compression: str) -> None:
    def rows(first: int, count: int) -> pa.RecordBatch:
        codes = pa.array([f"v{number}" for number in range(first, first + count)]).dictionary_encode()
        texts = pa.array([f"a text that is no short one {number}" for number in range(first, first + count)])
        return pa.record_batch({"id": range(first, first + count), "code": codes, "text": texts.cast(pa.string_view())})

    path = tmp_path / "a"
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=kind == "file")
    batches = [rows(0, 5), rows(5, 4), rows(9, 7)]
    if kind == "file":
        batches = pa.Table.from_batches(batches).unify_dictionaries().to_batches()
    with (pa.ipc.new_file if kind == "file" else pa.ipc.new_stream)(path, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    url = f"memory://torchpipe-arrow/{kind}-{compression}"
    fsspec.filesystem("memory").put(str(path), url)
    expected = [row for batch in batches for row in batch.to_pylist()]
    for place in (path, url):
        assert list(ArrowReader(place)) == expected
        kept = [("text", ">", "a text that is no short one 3"), ("id", "<", 12)]
        assert list(ArrowReader(place, filter=kept)) == [
            row for row in expected if row["text"][28:] > "3" and row["id"] < 12
        ]
        check_node(lambda place=place: ArrowReader(place).sharding_filter(), epochs=[0], num_shards=2, positions=3)


def test_views_are_read_wherever_they_stand(tmp_path: Path) -> None:
    text, long = pa.string_view(), "a text that is no short one"
    columns = {
        "text": pa.array(["a", None, long], text),
        "bytes": pa.array([b"a", None, b"c"], pa.binary_view()),
        "list": pa.array([["a", long], None, []], pa.list_(text)),
        "large": pa.array([["a", long], None, []], pa.large_list(text)),
        "fixed": pa.array([["a"], None, [long]], pa.list_(text, 1)),
        "struct": pa.array(
            [{"t": [{"u": "a"}]}, None, {"t": []}], pa.struct([("t", pa.list_(pa.struct([("u", text)])))])
        ),
        "map": pa.array([[("a", "b")], None, []], pa.map_(text, text)),
        "code": pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.uint32()), pa.array(["a", long], text)),
    }
    made = pa.table({"id": [0, 1, 2], **columns}).replace_schema_metadata({"k": "v"})
    write(tmp_path / "a", "file", made, 3)
    rows = made.to_pylist()
    assert list(ArrowReader(tmp_path / "a")) == rows
    for kept, numbers in ([("id", ">", 0)], [1, 2]), ([("text", "==", long)], [2]), ([("code", "==", "a")], [2]):
        assert list(ArrowReader(tmp_path / "a", filter=kept)) == [rows[number] for number in numbers]
    for form in ("numpy", "torch", "arrow"):
        (batch,) = ArrowReader(tmp_path / "a", batch_size=3, format=form)
        found = batch.to_pydict() if form == "arrow" else {name: list(values) for name, values in batch.items()}
        assert found == made.to_pydict()
    assert batch.schema.metadata == made.schema.metadata
