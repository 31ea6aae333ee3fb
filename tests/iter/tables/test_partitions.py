"""``read_parquet(partitioning="hive")``: columns of paths, as ``pyarrow.dataset`` reads them, from every row on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from torchpipe.errors import StateMismatchError
from torchpipe.iter import ParquetReader, PathList, RowGroupLister
from torchpipe.node.datapipe import iterate
from torchpipe.node.fingerprint import fingerprint
from torchpipe.testing import check_node

FOLDERS = ("year=2023/m=01", "year=2024/m=x%20y", "year=__HIVE_DEFAULT_PARTITION__/m=02", "year=2024/m=03")
FIELDS = pa.schema([("year", pa.int32()), ("m", pa.string())])
FILTERS = [
    None,
    [("year", "==", 2024)],
    [("year", ">", 2023), ("x", ">", 16)],
    [["year", "==", 2024], ["x", ">", 16]],  # as a configuration file has it
    [[("m", "==", "01")], [("x", "in", [7, 12])]],
    [[("m", "==", "01")], [("year", "==", 2024), ("x", ">", 16)]],
    pc.field("m") == "x y",
    (pc.field("year") == 2024) & (pc.field("x") < 7),
    pc.field("year").is_null(),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(FOLDERS):
        (tmp_path / "hive" / name).mkdir(parents=True)
        rows = pa.table({"x": range(5 * number, 5 * number + 5)})
        pq.write_table(rows, tmp_path / "hive" / name / "p.parquet", row_group_size=2)
    return tmp_path / "hive"


def read(folder: Path, **given: Any) -> ParquetReader:
    return ParquetReader(folder / "*/*/*.parquet", partitioning="hive", **given)


@pytest.mark.parametrize("kept", FILTERS, ids=map(str, range(len(FILTERS))))
def test_rows_are_those_of_pyarrows_data_set(folder: Path, kept: Any) -> None:
    expression = pq.filters_to_expression(kept) if isinstance(kept, list) else kept
    expected = ds.dataset(folder, partitioning="hive").to_table(filter=expression).sort_by("x").to_pylist()
    for columns in (None, ["m", "x"], ["year"]):
        rows = [{name: row[name] for name in columns or row} for row in expected]
        for node in (
            read(folder, columns=columns, filter=kept),
            read(folder, columns=columns, filter=kept).shard_pieces(),
        ):
            found = list(node)
            assert sorted(map(str, found)) == sorted(map(str, rows))
            assert [list(row) for row in found] == [list(row) for row in rows]


@pytest.mark.parametrize(
    "names", [("a%20b=1", "a%20b=2"), ("y=%5F_HIVE_DEFAULT_PARTITION__", "y=+2"), ("y=1/y=2", "y=3/y=4")]
)
def test_keys_and_values_are_those_of_pyarrows_data_set(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        (tmp_path / name).mkdir(parents=True)
        pq.write_table(pa.table({"x": [1]}), tmp_path / name / "p.parquet")
    rows = ds.dataset(tmp_path, partitioning="hive").to_table().to_pylist()
    found = list(ParquetReader([tmp_path / name / "p.parquet" for name in names], partitioning="hive"))
    assert sorted(map(str, found)) == sorted(map(str, rows))


def test_L2_exact_resume(folder: Path) -> None:
    for kept in (FILTERS[2], FILTERS[7]):
        check_node(lambda kept=kept: read(folder, filter=kept).sharding_filter(), epochs=[0], positions=3)
    check_node(
        lambda: read(folder, batch_size=2, format="python").shard_pieces(piece_bytes=1),
        epochs=[0],
        num_shards=2,
        positions=4,
    )


def test_behind_a_node_a_schema_says_the_types(folder: Path) -> None:
    kept = [("year", "==", 2024), ("x", ">", 6)]
    expected = list(read(folder, filter=kept))
    assert len(expected) == 8
    for paths in (PathList(folder / "*/*/*.parquet").filter(bool), RowGroupLister(folder / "*/*/*.parquet")):
        assert list(paths.read_parquet(partitioning=FIELDS, filter=kept)) == expected
        with pytest.raises(ValueError, match=r"not known behind a node .*partitioning=pyarrow\.schema"):
            paths.read_parquet(partitioning="hive")
    with pytest.raises(ValueError, match=r"m=x%20y/p\.parquet has a value that is not of"):
        ParquetReader(folder / "*/*/*", ["m"], partitioning=pa.schema([("m", pa.int8())]))


def test_files_of_which_a_filter_keeps_nothing_are_not_opened(folder: Path) -> None:
    big = folder / "year=2022/m=04"
    big.mkdir(parents=True)
    (big / "p.parquet").write_bytes(bytes(1_000_000))  # would be an error
    for kept in ([("year", ">", 2022)], [["year", ">", 2022], ["x", ">", 2]], pc.field("year") > 2022):
        rows = 12 if isinstance(kept, list) and len(kept) == 2 else 15
        assert len(list(read(folder, filter=kept))) == rows
    with pytest.raises(ValueError, match=r"p\.parquet is no parquet file"):
        list(read(folder, filter=[("x", ">", 2)]))


def test_what_paths_say_is_part_of_the_identity(folder: Path, tmp_path: Path) -> None:
    def renamed(old: str, new: str) -> None:
        (folder / old).rename(folder / new)

    node, plain = read(folder), ParquetReader(folder / "*/*/*.parquet")
    assert fingerprint(node) != fingerprint(plain)
    assert "year" not in next(iter(plain))
    iterator = iterate(node)
    next(iterator)
    state = iterator.state_dict()
    iterator.close()
    folder.rename(tmp_path / "moved")
    assert fingerprint(read(tmp_path / "moved")) == fingerprint(node)
    (tmp_path / "moved").rename(folder)
    one = ParquetReader(folder / "year=2023/m=01/*", partitioning="hive")
    renamed("year=2023", "year=2025")
    assert fingerprint(ParquetReader(folder / "year=2025/m=01/*", partitioning="hive")) != fingerprint(one)
    assert fingerprint(read(folder)) != fingerprint(node)
    with pytest.raises(StateMismatchError):
        iterate(read(folder)).load_state_dict(state)


def test_wrong_partitions_are_refused(folder: Path) -> None:
    path = folder / FOLDERS[0] / "p.parquet"
    for wrong, error, message in (
        ("dir", ValueError, "partitioning must be one of 'hive'"),
        (["year"], TypeError, r"partitioning must be 'hive' or a pyarrow\.Schema"),
        (pa.schema([]), ValueError, "partitioning must name columns"),
    ):
        with pytest.raises(error, match=message):
            ParquetReader(path, partitioning=wrong)
    for kept in ([("year", "==", "2024")], [[("x", ">", 1), ("m", "==", 1)], [("x", "<", 0)]]):
        with pytest.raises(ValueError, match=r"filter compares .* columns of paths, which are year int32, m string"):
            read(folder, filter=kept)
    pq.write_table(pa.table({"year": [1]}), path)
    with pytest.raises(ValueError, match=r"p\.parquet has a column 'year', and its path names one"):
        list(ParquetReader(path, partitioning="hive"))
    pq.write_table(pa.table({"x": [1]}), folder / "plain.parquet")
    with pytest.raises(ValueError, match=r"plain\.parquet' has no key=value"):
        ParquetReader(folder / "plain.parquet", partitioning="hive")
    with pytest.raises(ValueError, match=r"has no column 'z': its columns are x, year, m"):
        list(ParquetReader(folder / FOLDERS[1] / "p.parquet", ["z"], partitioning="hive"))
