"""``read_parquet``: the same rows and batches from every row on; a shard reads its own row groups; errors name the
row."""

from __future__ import annotations

import datetime
import decimal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from reading_services import MultiProcessingReadingService
from tests.reads import bytes_read_by
from torchpipe import DataLoader2
from torchpipe.errors import StateError
from torchpipe.formats.pieces.plan import Piece
from torchpipe.iter import IterableWrapper, ParquetReader, PathList, RowGroupLister
from torchpipe.node.datapipe import iterate
from torchpipe.state import decode, encode
from torchpipe.testing import check_node
from torchpipe.testing.compare import freeze


def table(first: int, count: int) -> pa.Table:
    rows = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "x": pa.array([row / 8 for row in rows], pa.float32()),
            "name": pa.array([f"n{row}" for row in rows], pa.string()),
            "odd": pa.array([row % 2 == 1 for row in rows], pa.bool_()),
            "maybe": pa.array([None if row % 3 == 0 else row for row in rows], pa.int64()),
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(table(0, 11), tmp_path / "0.parquet", row_group_size=4)
    pq.write_table(table(11, 0), tmp_path / "1.parquet")
    pq.write_table(table(11, 9), tmp_path / "2.parquet", row_group_size=5)
    return tmp_path


def ids(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def test_rows_are_dicts(folder: Path) -> None:
    rows = list(ParquetReader(folder / "*"))
    assert rows == table(0, 20).to_pylist()
    assert list(PathList(str(folder / "*")).read_parquet(["name", "id"])) == [
        {"name": f"n{row}", "id": row} for row in range(20)
    ]
    assert len(ParquetReader(folder / "*")) == 20


def test_batches_end_with_row_groups(folder: Path) -> None:
    node = ParquetReader(folder / "*", ["id", "x"], batch_size=3)
    batches = list(node)
    assert ids(batches) == [[0, 1, 2], [3], [4, 5, 6], [7], [8, 9, 10], [11, 12, 13], [14, 15], [16, 17, 18], [19]]
    assert len(node) == 9
    assert [batches[0][name].dtype for name in ("id", "x")] == [torch.int64, torch.float32]
    batches[0]["x"] += 1  # their own memory
    assert torch.equal(batches[1]["x"], torch.tensor([3 / 8]))


@pytest.mark.nightly
@pytest.mark.parametrize("filter", [None, [("id", ">", 5), ("id", "<", 17)]], ids=["all", "filtered"])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_L2_exact_resume(folder: Path, batch_size: int | None, filter: Any) -> None:
    check_node(lambda: ParquetReader(folder / "*", ["id", "name"], batch_size=batch_size, filter=filter), epochs=[0])
    shards = lambda: ParquetReader(folder / "*", ["id"], batch_size=batch_size, filter=filter).sharding_filter()  # noqa: E731
    check_node(shards, epochs=[0], num_shards=3)


def test_L2_exact_resume_by_row_groups(folder: Path) -> None:
    check_node(lambda: PathList(str(folder / "*")).list_row_groups().shuffle().sharding_filter().read_parquet())
    pairs = [(str(folder / "2.parquet"), 0), (str(folder / "2.parquet"), 1)]
    for lister in (RowGroupLister(folder / "2.parquet"), IterableWrapper([folder / "2.parquet"]).list_row_groups()):
        assert [(piece.path, piece.start) for piece in lister] == pairs
    check_node(lambda: RowGroupLister(folder / "*").shuffle().sharding_filter(), epochs=[0], num_shards=2)
    assert len(RowGroupLister(folder / "*")) == len(list(PathList(str(folder / "*")).list_row_groups()))


def test_L2_a_piece_is_its_consumers_own(folder: Path) -> None:
    """Whoever changes its stamp in place changes no state, and no other piece."""
    path = folder / "2.parquet"
    for lister in (RowGroupLister(path), IterableWrapper([path]).list_row_groups()):
        with iterate(lister) as stream:
            next(stream).stamp.append(1)
            state = stream.state_dict()
            (last,) = stream
        with iterate(lister) as resumed:
            resumed.load_state_dict(state)
            assert list(resumed) == [last]
        assert len(last.stamp) == 2


def test_L1_a_shard_has_every_nth_row_or_batch(folder: Path) -> None:
    for batch_size in (None, 2, 4):
        for keep in (None, pc.field("id") > 2):
            node = ParquetReader(folder / "*", ["id"], batch_size=batch_size, format=None, filter=keep)
            whole = [freeze(item) for item in node]
            for shard in range(3):
                part = [freeze(item) for item in iterate(node.sharding_filter(), shard=shard, num_shards=3)]
                assert part == whole[shard::3], (batch_size, keep)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10 row groups of 10,000 rows of 8 random bytes, 800 kB in all."""
    path = tmp_path_factory.mktemp("large") / "large.parquet"
    rng = np.random.default_rng(0)
    columns = {"id": np.arange(100_000), "noise": rng.integers(0, 1 << 62, 100_000)}
    pq.write_table(pa.table(columns), path, row_group_size=10_000, compression=None, use_dictionary=False)
    return path


def test_L5_resuming_reads_one_row_group_wherever_it_is(large: Path) -> None:
    node = ParquetReader(large, batch_size=1_000)
    iterator = iterate(node)
    costs = []
    for number in range(95):
        next(iterator)
        if number % 30 == 4:
            state = decode(encode(iterator.state_dict()))
            again = iterate(node)

            def resume(again: Any = again, state: Any = state, number: int = number) -> None:
                again.load_state_dict(state)
                assert next(again)["id"][0] == (number + 1) * 1_000

            costs.append(bytes_read_by(resume))
            again.close()
    iterator.close()
    assert len(costs) == 4
    assert max(costs) < 400_000  # of 1.6 MB: a row group has 160 kB, the end of the file up to 64 kB
    assert max(costs) - min(costs) < 20_000


def test_L5_a_shard_reads_the_row_groups_that_hold_its_batches(large: Path) -> None:
    whole = bytes_read_by(lambda: list(ParquetReader(large, batch_size=10_000)))
    node = ParquetReader(large, batch_size=10_000).sharding_filter()
    half = bytes_read_by(lambda: list(iterate(node, shard=0, num_shards=2)))
    assert half < 0.65 * whole
    column = bytes_read_by(lambda: list(ParquetReader(large, ["id"], batch_size=10_000)))
    assert column < 0.65 * whole
    few = bytes_read_by(lambda: list(ParquetReader(large, batch_size=10_000, filter=[("id", "<", 20_000)])))
    assert few < 0.5 * whole


def test_what_columns_become(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    columns = {
        "pair": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int16(), 2)),
        "square": pa.array([[[1.0], [2]], [[3], [4]], [[5], [6]]], pa.list_(pa.list_(pa.float64(), 1), 2)),
        "ragged": pa.array([[1], [], [2, 3]], pa.list_(pa.int64())),
        "word": pa.array(["a", "b", "a"]).dictionary_encode(),
        "raw": pa.array([b"a", None, b"c"]),
        "when": pa.array([datetime.datetime(2026, 1, day + 1) for day in range(3)], pa.timestamp("us")),
        "price": pa.array([decimal.Decimal("1.5")] * 3),
        "inner": pa.array([{"a": 1}, {"a": None}, None]),
        "odd": pa.array([True, False, True]),
        "gone": pa.array([datetime.date(2026, 1, 1), None, datetime.date(2026, 1, 3)]),
        "took": pa.array([datetime.timedelta(seconds=second) for second in range(3)], pa.duration("ms")),
        "grid": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12).reshape(3, 2, 2)),
        "half": pa.array(np.arange(3, dtype=np.float16)),
    }
    pq.write_table(pa.table(columns), path)
    (batch,) = ParquetReader(path, batch_size=5, format="torch")
    assert torch.equal(batch["pair"], torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.int16))
    assert batch["square"].shape == (3, 2, 1)
    assert batch["square"][2, 1, 0] == 6
    assert [part.tolist() for part in batch["ragged"]] == [[1], [], [2, 3]]
    assert (batch["word"], batch["raw"]) == (["a", "b", "a"], [b"a", None, b"c"])
    assert batch["when"][1] == datetime.datetime(2026, 1, 2)
    assert (batch["price"][0], batch["inner"]) == (decimal.Decimal("1.5"), [{"a": 1}, {"a": None}, None])
    assert batch["odd"].tolist() == [True, False, True]
    (arrays,) = ParquetReader(path, batch_size=5, format="numpy")
    assert arrays["when"].dtype == "datetime64[us]"
    assert isinstance(arrays["ragged"][2], np.ndarray)
    assert arrays["pair"].flags.writeable
    assert arrays["gone"][:2].tolist() == [datetime.date(2026, 1, 1), None]
    assert np.isnat(arrays["gone"][1])
    assert arrays["took"].tolist() == [datetime.timedelta(seconds=second) for second in range(3)]
    assert batch["grid"].shape == (3, 2, 2)
    assert batch["grid"][2].tolist() == [[8, 9], [10, 11]]
    assert arrays["half"].dtype == np.float16
    (lists,) = ParquetReader(path, ["pair"], batch_size=5, format="python")
    assert lists == {"pair": [[1, 2], [3, 4], [5, 6]]}
    (whole,) = ParquetReader(path, ["pair"], batch_size=5, format="arrow")
    assert isinstance(whole, pa.RecordBatch)
    check_node(lambda: ParquetReader(path, batch_size=2, format="numpy"), epochs=[0], num_shards=1)


def test_nulls_are_none_in_rows_and_an_error_of_their_batch_in_arrays(folder: Path) -> None:
    assert [row["maybe"] for row in ParquetReader(folder / "0.parquet")][:4] == [None, 1, 2, None]
    path = folder / "late.parquet"
    pq.write_table(pa.table({"a": [1, 2, 3, 4, None, 6]}), path)
    iterator = iter(ParquetReader(path, batch_size=2))
    assert [next(iterator)["a"].tolist() for _ in range(2)] == [[1, 2], [3, 4]]
    with pytest.raises(
        ValueError, match=r"column 'a' has 1 nulls, the first 0 rows on.*fill_null=\{'a': \.\.\.\}"
    ) as caught:
        next(iterator)
    assert caught.value.__notes__ == [f"ParquetReader: while reading {path}, row 4 of block 0"]
    for fill in (7, {"a": 7}):
        assert [batch["a"].tolist() for batch in ParquetReader(path, batch_size=4, fill_null=fill)] == [
            [1, 2, 3, 4],
            [7, 6],
        ]


def test_filters_are_expressions_or_lists(folder: Path) -> None:
    for keep in ([("id", ">", 17)], [[("id", ">", 17)], [("id", "<", 0)]], (pc.field("id") > 17) & ~pc.field("odd")):
        assert [row["id"] for row in ParquetReader(folder / "*", ["id"], filter=keep)][0] == 18
    assert list(ParquetReader(folder / "*", ["name"], filter=pc.field("id") == 12)) == [{"name": "n12"}]
    with pytest.raises(TypeError, match="knows its length if"):
        len(ParquetReader(folder / "*", filter=[("id", ">", 3)]))
    with pytest.raises(TypeError, match="knows its length if"):
        len(PathList(str(folder / "*")).filter(bool).read_parquet())


def test_L7_what_is_wrong_with_a_file_names_it(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"0\.parquet has no column 'idd': its columns are id, x, name, odd, maybe"):
        list(ParquetReader(folder / "*", ["idd"]))
    with pytest.raises(ValueError, match=r"0\.parquet has no row group 3: it has 3"):
        list(IterableWrapper([Piece(str(folder / "0.parquet"), "row groups", 3, 4, None)]).read_parquet())
    whole = (folder / "0.parquet").read_bytes()
    for wrong in (b"", b"no parquet file at all", whole[:-1], whole[: len(whole) // 2]):
        (folder / "0.parquet").write_bytes(wrong)
        path = folder / "0.parquet"
        lazy = IterableWrapper([str(path)]).list_row_groups()
        for make in (ParquetReader, RowGroupLister, lambda _, lazy=lazy: lazy):
            with pytest.raises(ValueError, match=r"0\.parquet is no parquet file, or a damaged one"):
                list(make(path))
    with pytest.raises(FileNotFoundError, match="missing"):
        list(IterableWrapper([str(folder / "missing")]).read_parquet())
    damaged = bytearray(whole)
    damaged[4:200] = bytes(196)
    (folder / "0.parquet").write_bytes(damaged)
    with pytest.raises(Exception) as caught:
        list(ParquetReader(folder / "0.parquet"))
    assert f"while reading {folder / '0.parquet'}, row 0 of block 0" in caught.value.__notes__[0]


def test_L8_forged_states_are_refused(folder: Path) -> None:
    def refused(node: Any, changed: Any) -> None:
        again = iterate(node)
        with pytest.raises(StateError):
            again.load_state_dict({**good, "iterator": {**good["iterator"], **changed}})
            next(again)
        again.close()

    groups = IterableWrapper([str(folder / "0.parquet")]).list_row_groups()
    for node in (ParquetReader(folder / "0.parquet", ["id"], batch_size=2), groups):
        iterator = iterate(node)
        next(iterator)
        good = iterator.state_dict()
        iterator.close()
        for place in ({"block": 9, "row": 0}, {"block": 0, "row": 99}, {"block": 0, "row": 1}, {"block": -1, "row": 0}):
            refused(node, {"place": place | {"group": place["row"] if place["row"] > 3 else -1}})
        for wrong in (None, {}, {"block": "0", "row": 0}, {"block": 0, "row": True}, {"group": 1.0}):
            refused(node, {"place": wrong})
        refused(node, {"file": [1, 1]})


def test_a_missing_package_is_named_with_its_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for make in (ParquetReader, RowGroupLister):
        with pytest.raises(ImportError, match="pip install pyarrow$"):
            make(folder / "*")


def test_L3_in_workers_it_is_the_same_stream_and_a_state_moves(folder: Path) -> None:
    def graph() -> Any:
        return RowGroupLister(folder / "*").shuffle().sharding_filter().read_parquet(["id"], batch_size=2)

    reference = DataLoader2(graph(), reading_service=MultiProcessingReadingService(num_workers=0, num_shards=2))
    reference.seed(3)
    expected = ids(reference)
    loader: DataLoader2[Any] = DataLoader2(graph(), reading_service=MultiProcessingReadingService(num_workers=2))
    loader.seed(3)
    batches = iter(loader)
    got = ids(next(batches) for _ in range(4))
    reference.load_state_dict(loader.state_dict())
    loader.shutdown()
    assert got + ids(reference) == expected
    reference.shutdown()


def test_urls_are_read_through_fsspec(folder: Path) -> None:
    import fsspec

    with fsspec.open("memory://torchpipe-parquet/a.parquet", "wb") as file:
        file.write((folder / "0.parquet").read_bytes())
    url = "memory://torchpipe-parquet/*.parquet"
    assert [row["id"] for row in ParquetReader(url)] == list(range(11))
    assert [row["id"] for row in ParquetReader(url, filter=[("id", ">", 8)])] == [9, 10]
    assert len(ParquetReader(url)) == 11


ROW_TYPES = {
    "n": pa.int32(), "x": pa.float64(), "yes": pa.bool_(), "name": pa.string(), "day": pa.date32(),
    "tokens": pa.list_(pa.uint16()), "pair": pa.list_(pa.list_(pa.float32(), 2), 1),
}  # fmt: skip


def typed_rows() -> list[dict[str, Any]]:
    return [
        {"n": n, "x": n / 2, "yes": n % 2 == 0, "name": f"n{n}", "day": datetime.date(2020, 1, 1 + n)}
        | {"tokens": list(range(n % 4)), "pair": [[float(n), 1.0]]}
        for n in range(11)
    ]


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_rows_of_arrays_are_the_rows_of_batches(form: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(typed_rows(), pa.schema(ROW_TYPES)), path, row_group_size=4)
    rows = list(ParquetReader(path, format=form))
    batches = list(ParquetReader(path, format=form, batch_size=3))
    of_batches = [dict(zip(batch, values)) for batch in batches for values in zip(*batch.values())]
    assert freeze(rows) == freeze(of_batches)
    owned = [row["pair"] for row in rows] + [row["tokens"] for row in rows]
    for array in owned:
        array *= 0  # theirs alone, and to be changed
    assert [row["tokens"].tolist() for row in rows] == [[0] * (n % 4) for n in range(11)]
    assert rows[1]["pair"].tolist() == [[0.0, 0.0]]
    check_node(lambda: ParquetReader(path, format=form))


def test_a_null_in_a_row_of_arrays(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"n": [1, None, 3], "t": [[1], [2, 3], [4]]}), path)
    read = iterate(ParquetReader(path, format="numpy"))
    assert next(read)["n"] == 1
    with pytest.raises(ValueError, match="column 'n' has 1 nulls"):
        next(read)
    filled = ParquetReader(path, format="numpy", fill_null={"n": 7})
    assert [int(row["n"]) for row in filled] == [1, 7, 3]
    left = [int(row["n"]) for row in ParquetReader(path, format="numpy").on_error("skip")]
    assert left == [1, 3]


@pytest.mark.parametrize("form", ["python", "numpy", "torch"])
def test_token_lists_are_packed_alike_in_every_format(form: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens.parquet"
    documents = [list(range(n, n + n % 7)) for n in range(200)]
    pq.write_table(pa.table({"tokens": pa.array(documents, pa.list_(pa.int32()))}), path, row_group_size=50)
    packs = list(ParquetReader(path, format=form).pack(16, drop_last=True))
    tokens = [token for document in documents for token in document]
    assert [int(token) for pack in packs for token in pack["tokens"]] == tokens[: 16 * len(packs)]
