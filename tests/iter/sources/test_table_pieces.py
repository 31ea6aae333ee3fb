"""``shard_pieces`` of tables: row groups of parquet files, record batches of Arrow files."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.iter import ArrowReader, FilePieces, IterableWrapper, ParquetReader, RowGroupLister
from torchpipe.node.datapipe import iterate
from torchpipe.testing import check_node

IDS = list(range(44))


def table(first: int, last: int) -> pa.Table:
    names = pa.array([f"n{row % 3}" for row in range(first, last)]).dictionary_encode()
    return pa.table({"id": list(range(first, last)), "name": names})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Parquet files of 3, 1 and 6 row groups, and Arrow files of both kinds with as many batches."""
    for number, (first, last, rows) in enumerate([(0, 11, 4), (11, 14, 5), (14, 44, 5)]):
        pq.write_table(table(first, last), tmp_path / f"{number}.parquet", row_group_size=rows)
        part = table(first, last)
        for kind, make in (("arrow", pa.ipc.new_file), ("stream", pa.ipc.new_stream)):
            with make(str(tmp_path / f"{number}.{kind}"), part.schema) as writer:
                writer.write_table(part, max_chunksize=rows)
            plain = part.select(["id"])
            with make(str(tmp_path / f"plain {number}.{kind}"), plain.schema) as writer:
                writer.write_table(plain, max_chunksize=rows)
    return tmp_path


def ids(items: Any) -> list[int]:
    return [item["id"] for item in items]


def shares(node: Any, shards: int) -> list[list[int]]:
    return [ids(iterate(node, seed=3, shard=shard, num_shards=shards)) for shard in range(shards)]


def test_row_groups_are_read_by_one_shard_each(folder: Path) -> None:
    node = ParquetReader(folder / "*.parquet", ["id"]).shard_pieces(piece_bytes=1)
    assert len(node.source.source) == 10
    parts = shares(node, 4)
    assert sorted(chain(*parts)) == IDS
    assert all(parts)
    check_node(lambda: node, num_shards=3)
    small = ParquetReader(folder / "*.parquet").shard_pieces(shuffle=False)
    assert len(small.source.source) == 3  # neighbours are one piece, as far as that has no more than piece_bytes
    assert shares(small, 1) == [IDS]
    few = ParquetReader(folder / "*.parquet", filter=[("id", "<", 9)]).shard_pieces(piece_bytes=1)
    assert sorted(chain(*shares(few, 4))) == IDS[:9]


def test_neighbours_of_one_file_are_joined_up_to_the_size_that_is_asked_for(folder: Path) -> None:
    size = (folder / "2.parquet").stat().st_size
    pieces = list(FilePieces(folder / "2.parquet", "row groups", piece_bytes=size // 2))
    assert [piece.start for piece in pieces[1:]] == [piece.stop for piece in pieces[:-1]]
    assert (pieces[0].start, pieces[-1].stop) == (0, 6)
    assert 1 < len(pieces) < 6
    rows = [row for piece in pieces for row in IterableWrapper([piece]).read_parquet(["id"])]
    assert ids(rows) == IDS[14:]


@pytest.mark.parametrize("batch_size", [None, 3])
def test_the_length_is_known(folder: Path, batch_size: int | None) -> None:
    def make(shuffle: bool, piece_bytes: int = 1) -> Any:
        reader = ParquetReader(folder / "*.parquet", batch_size=batch_size)
        return reader.shard_pieces(shuffle=shuffle, piece_bytes=piece_bytes)

    for piece_bytes in (1, 1 << 20):
        assert len(make(True, piece_bytes)) == len(list(make(True, piece_bytes)))
    for shards in (1, 3):
        service = InProcessReadingService(num_shards=shards)
        with DataLoader2(make(False), reading_service=service) as loader:
            assert len(loader) == len(list(loader))
    with (
        DataLoader2(make(True), reading_service=InProcessReadingService(num_shards=2)) as loader,
        pytest.raises(TypeError, match="which pieces a shard has, and how many rows, changes with each epoch"),
    ):
        len(loader)
    with pytest.raises(TypeError, match="no filter"):
        len(ParquetReader(folder / "*.parquet", filter=[("id", ">", 3)]).shard_pieces())


def test_record_batches_of_arrow_files(folder: Path) -> None:
    for names, count in (("[0-2].arrow", 10), ("plain*.arrow", 10), ("plain*.stream", 10), ("[0-2].stream", 3)):
        node = ArrowReader(folder / names, ["id"]).shard_pieces(piece_bytes=1)
        assert len(node.source.source) == count, names  # batches of a stream with dictionaries need those before
        parts = shares(node, 3)
        assert sorted(chain(*parts)) == IDS
        assert all(parts)
    check_node(lambda: ArrowReader(folder / "plain*.stream").shard_pieces(piece_bytes=1), epochs=[0], num_shards=2)


def test_tables_at_urls(folder: Path) -> None:
    import fsspec

    for path in folder.iterdir():
        with fsspec.open(f"memory://tables/{path.name}", "wb") as file:
            file.write(path.read_bytes())
    for reader, names, count in (
        (ParquetReader, "*.parquet", 10),
        (ArrowReader, "[0-2].arrow", 10),
        (ArrowReader, "plain*.stream", 3),  # reading one takes all of it
    ):
        node = reader(f"memory://tables/{names}").shard_pieces(piece_bytes=1)
        assert len(node.source.source) == count
        assert sorted(chain(*shares(node, 3))) == IDS


def test_L7_a_piece_that_is_not_there_is_named(folder: Path) -> None:
    path = str(folder / "0.parquet")
    pieces = FilePieces(path, "row groups", piece_bytes=1)
    wrong = pieces.plan[2]._replace(stop=4)
    with pytest.raises(ValueError, match=r"0\.parquet has no row group 3: it has 3"):
        list(IterableWrapper([wrong]).read_parquet())
    with pytest.raises(
        TypeError, match=r"read_lines reads pieces that are lines, and .*0\.parquet was cut at row groups"
    ):
        list(pieces.read_lines())
    (folder / "0.parquet").write_bytes((folder / "1.parquet").read_bytes())
    with pytest.raises(ValueError, match=r"0\.parquet has changed since its pieces were planned"):
        list(pieces.read_parquet())


def test_a_lister_of_row_groups_is_divided_itself(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"n": list(range(100))}), path, row_group_size=20)
    with pytest.raises(TypeError, match="only lists what is in them: put shuffle"):
        RowGroupLister(str(path)).shard_pieces()
    graph = RowGroupLister(str(path)).shuffle().sharding_filter().read_parquet()
    assert sorted(row["n"] for row in graph) == list(range(100))
    pq.write_table(pa.table({"n": list(range(100))}), path, row_group_size=10)  # since the groups were listed
    with pytest.raises(ValueError, match="has changed since its pieces were planned"):
        list(graph)
