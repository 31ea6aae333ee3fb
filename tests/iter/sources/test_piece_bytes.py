"""What ``shard_pieces`` is for: a shard reads its share of the bytes, however many shards there are."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec.asyn
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reading_services import MultiProcessingReadingService
from tests.reads import bytes_read_by
from tests.servers import Page, web_server
from torchpipe import DataLoader2
from torchpipe.formats.tfrecord import write_record
from torchpipe.iter import (
    JsonlReader,
    ParquetReader,
    RowGroupLister,
    TextLineReader,
    TFRecordReader,
    WebDatasetReader,
)
from torchpipe.node.datapipe import iterate

# Its descriptors stay, and a thread that looks up names: no test is to be the one that begins them
fsspec.asyn.sync(fsspec.asyn.get_loop(), asyncio.to_thread, int)

PIECE = 1 << 19
PIECES = 128
GROUP = 1 << 20


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """64 MB of documents, samples and records of 4 to 12 kB, and 128 MB of row groups of 1 MB."""
    folder = tmp_path_factory.mktemp("large")
    text = folder / "large.jsonl"
    texts = ["x" * size for size in range(4_000, 12_000, 250)]
    with open(text, "w") as file:
        written = number = 0
        while written < PIECE * PIECES:
            written += file.write(json.dumps({"id": number, "text": texts[number % len(texts)]}) + "\n")
            number += 1
        file.truncate(PIECE * PIECES)  # in the midst of a text: it is no JSON, and no less a line
    values = np.random.default_rng(0).integers(0, 1 << 62, PIECES * GROUP // 8)
    table = folder / "large.parquet"
    groups = {"row_group_size": GROUP // 8, "compression": None, "use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.table({"value": values}), table, **groups)
    archive, records = folder / "large.tar", folder / "large.tfrecord"
    count = PIECE * PIECES // 8_800
    with tarfile.open(archive, "w") as tar, open(records, "wb") as file:
        for number in range(count):
            content = bytes(4_000 + number * 997 % 8_000)
            write_record(file, content)  # type: ignore[arg-type]
            for ending, part in (("txt", str(number).encode()), ("bin", content)):
                info = tarfile.TarInfo(f"{number:06}.{ending}")
                info.size = len(part)
                tar.addfile(info, io.BytesIO(part))
    yield {"text": text, "table": table, "tar": archive, "tfrecord": records}
    for path in (text, table, archive, records):
        path.unlink()


def read(node: Any, shard: int, shards: int) -> int:
    return sum(1 for _ in iterate(node, seed=7, shard=shard, num_shards=shards))


@pytest.mark.parametrize("shards", [1, 8, 128])
@pytest.mark.parametrize("kind", ["lines", "jsonl", "parquet", "tar", "tfrecord"])
def test_L5_a_shard_reads_its_share_of_the_bytes(files: dict[str, Path], kind: str, shards: int) -> None:
    node: Any
    if kind == "parquet":
        path = files["table"]
        node = ParquetReader(path, batch_size=GROUP // 8, format="arrow").shard_pieces(piece_bytes=GROUP)
    elif kind == "tar":
        path = files["tar"]
        node = WebDatasetReader(path, ["txt", "bin"]).shard_pieces(piece_bytes=-(-path.stat().st_size // PIECES))
    elif kind == "tfrecord":
        path = files["tfrecord"]
        node = TFRecordReader(path, parse=False).shard_pieces(piece_bytes=-(-path.stat().st_size // PIECES))
    elif kind == "lines":
        path = files["text"]
        node = TextLineReader(path).shard_pieces(piece_bytes=PIECE)
    else:
        path = files["text"]
        node = JsonlReader(path).shard_pieces(piece_bytes=PIECE).on_error("skip")
    share = path.stat().st_size / shards
    for shard in {0, 1, shards // 2, shards - 1} & {*range(shards)}:
        count = bytes_read_by(lambda shard=shard: read(node, shard, shards))  # type: ignore[misc]
        assert 0.9 * share < count < 1.1 * share, (shard, count / share)


def test_L5_so_it_does_at_a_url(files: dict[str, Path]) -> None:
    content = files["text"].read_bytes()[: 4 * GROUP]
    with web_server() as server:
        server.pages["/large"] = Page(content, {"ETag": '"1"'})
        node = TextLineReader(f"{server.address}/large").shard_pieces(piece_bytes=GROUP)
        assert len(node.source.source) == 4
        assert server.ranged == 0
        for shard in range(4):
            before = server.ranged
            assert read(node, shard, 4)
            assert 0.9 < (server.ranged - before) / GROUP < 1.1


def test_L5_so_it_does_of_a_table_at_a_url() -> None:
    names, rows = [f"c{number}" for number in range(6)], 4 * GROUP // 48
    rng = np.random.default_rng(1)
    table = pa.table({name: rng.integers(0, 1 << 62, 4 * rows) for name in names})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=rows, compression=None, use_dictionary=False)
    content = sink.getvalue().to_pybytes()
    with web_server() as server:
        server.pages["/large"] = Page(content, {"ETag": '"1"'})
        node = ParquetReader(f"{server.address}/large", batch_size=rows).shard_pieces(piece_bytes=4 * GROUP)
        assert len(node.source.source) == 4
        assert server.ranged < 0.1 * len(content)  # the end, for the plan
        share = len(content) / 4
        for shard in range(4):
            before = server.ranged, len(server.requests)
            assert read(node, shard, 4) == 1
            assert 0.9 < (server.ranged - before[0]) / share < 1.1
            assert len(server.requests) - before[1] < 12  # in large parts


def test_L7_a_file_that_is_replaced_on_its_server_is_noticed(files: dict[str, Path]) -> None:
    content = files["text"].read_bytes()[: 3 * GROUP]
    with web_server() as server:
        server.pages["/large"] = Page(content, {"ETag": '"1"'})
        node = TextLineReader(f"{server.address}/large").shard_pieces(piece_bytes=GROUP)
        server.pages["/large"] = Page(content, {"ETag": '"2"'})
        with pytest.raises(ValueError, match=r"large has changed since its pieces were planned.*another version.*2"):
            read(node, 0, 1)
        server.pages["/large"] = Page(content, {"ETag": '"1"', "Accept-Ranges": "none"}, ranges=False)
        whole = TextLineReader(f"{server.address}/large").shard_pieces(piece_bytes=GROUP)
        assert len(whole.source.source) == 1  # a server that gives no parts of files
        assert read(whole, 0, 1) == content.count(b"\n") + 1


def test_L1_workers_have_the_plan_that_was_made_with_the_graph(tmp_path: Path) -> None:
    """Nobody lists or looks at the ends of files again; a file that comes meanwhile is in nobody's plan."""
    for number in range(4):
        table = pa.table({"id": list(range(6 * number, 6 * number + 6))})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=2)
    with web_server() as server:
        for number in range(4):
            server.pages[f"/{number}"] = Page((tmp_path / f"{number}.parquet").read_bytes())
        urls = server.address + "/{0..3}"
        groups = RowGroupLister(urls).shuffle().sharding_filter()
        with DataLoader2(groups, reading_service=MultiProcessingReadingService(2, num_shards=4)) as loader:
            planned = len(server.requests)
            assert len(list(loader)) == len(list(loader)) == 12
            assert len(server.requests) == planned
    node = ParquetReader(tmp_path / "*.parquet").shard_pieces(piece_bytes=1)
    with DataLoader2(node, reading_service=MultiProcessingReadingService(2, num_shards=4)) as loader:
        pq.write_table(pa.table({"id": [99]}), tmp_path / "00.parquet")
        assert sorted(row["id"] for row in loader) == list(range(24))
        assert sorted(row["id"] for row in loader) == list(range(24))


def test_the_ends_of_remote_files_are_read_once(files: dict[str, Path], tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": list(range(6))}), tmp_path / "a.parquet", row_group_size=2)
    with web_server() as server:
        for number in range(20):
            server.pages[f"/{number}"] = Page((tmp_path / "a.parquet").read_bytes())
        for make in (RowGroupLister, lambda urls: ParquetReader(urls).shard_pieces().source.source):
            node: Any = make(server.address + "/{0..19}")
            planned = len(server.requests)
            for shard in range(4):
                list(iterate(node.sharding_filter(), seed=1, shard=shard, num_shards=4))
            assert len(server.requests) == planned
