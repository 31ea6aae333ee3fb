"""The law of files: whatever a reader is told, it reads what is there, no more bytes than it needs, and of one file.

Each reader, with its arguments and in pieces, over a server that fails now and then, over one whose object is replaced
while it is read, and over a local file that is.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec.asyn
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.servers import Page, WebServer, web_server
from torchpipe.formats.tfrecord import masked_crc32c
from torchpipe.iter import (
    ArrowReader,
    CsvReader,
    JsonlReader,
    ParquetReader,
    RowGroupLister,
    TextLineReader,
    TFRecordReader,
    WebDatasetReader,
    ZipReader,
)
from torchpipe.map import MDSFile, TFRecordFile

# Its descriptors stay, and a thread that looks up names: no test is to be the one that begins them
fsspec.asyn.sync(fsspec.asyn.get_loop(), asyncio.to_thread, int)

ROWS, WIDTH, BLOCKS = 1536, 1 << 10, 24
AHEAD = {"ahead_bytes": 1 << 18}  # so that an object is replaced before all of it was asked for


def noise(of: int) -> list[bytes]:
    """What two files differ in: bytes that nothing makes smaller, the first of which tells the file."""
    drawn = np.random.default_rng(7).integers(97, 123, (ROWS, WIDTH), np.uint8)
    drawn[:, 0] = 65 + of
    return [row.tobytes() for row in drawn]


def table(of: int) -> Any:
    return pa.table({"id": pa.array(range(ROWS)), "of": pa.array([of] * ROWS), "x": pa.array(noise(of), pa.binary())})


def lines(of: int) -> bytes:
    return b"".join(line + b"\n" for line in noise(of))


def jsonl(of: int) -> bytes:
    return b"".join(json.dumps({"x": line.decode()}).encode() + b"\n" for line in noise(of))


def csv(of: int) -> bytes:
    return b"id,x\n" + b"".join(b"%d,%s\n" % each for each in enumerate(noise(of)))


def parquet(of: int) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table(of), sink, row_group_size=ROWS // BLOCKS, compression=None, use_dictionary=False)
    return bytes(sink.getvalue())


def arrow(of: int, new: Callable[..., Any] = pa.ipc.new_file) -> bytes:
    sink = pa.BufferOutputStream()
    with new(sink, table(of).schema) as writer:
        writer.write_table(table(of), max_chunksize=ROWS // BLOCKS)
    return bytes(sink.getvalue())


def arrow_stream(of: int) -> bytes:
    return arrow(of, pa.ipc.new_stream)


def tar(of: int) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for number, content in enumerate(noise(of)):
            info = tarfile.TarInfo(f"{number:05}.txt")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
            if number % 64 == 63:
                link = tarfile.TarInfo(f"{number:05}.link")
                link.type, link.linkname = tarfile.LNKTYPE, "00000.txt"
                archive.addfile(link)
    return made.getvalue()


def zipped(of: int) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for number, content in enumerate(noise(of)):
            archive.writestr(str(number), content)
    return made.getvalue()


def tfrecord(of: int) -> bytes:
    def framed(data: bytes) -> bytes:
        length = struct.pack("<Q", len(data))
        return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))

    return b"".join(map(framed, noise(of)))


def mds(of: int) -> bytes:
    first = 4 * (ROWS + 2)
    places = [first + number * (4 + WIDTH) for number in range(ROWS + 1)]
    samples = b"".join(struct.pack("<I", len(content)) + content for content in noise(of))
    return struct.pack(f"<{ROWS + 2}I", ROWS, *places) + samples


MDS_INDEX = {
    "version": 2,
    "shards": [
        {"column_names": ["x"], "column_encodings": ["bytes"], "column_sizes": [None], "compression": None}
        | {"format": "mds", "version": 2, "samples": ROWS, "zip_data": None}
        | {"raw_data": {"basename": "data", "bytes": len(mds(0)), "hashes": {}}}
    ],
}


@dataclass
class Case:
    """``read(path, options)`` makes the node; ``share``: of the file, that it reads at most where it reads ``counted``
    bytes ahead."""

    content: Callable[[int], bytes]
    read: Callable[[str, Any], Any]
    share: float = 1.1
    where: tuple[str, ...] = ("local", "url")
    beside: dict[str, bytes] = field(default_factory=dict)
    counted: int = AHEAD["ahead_bytes"]


def reader(make: Any, *more: Any, **options: Any) -> Callable[[str, Any], Any]:
    return lambda path, storage: make(path, *more, storage_options=storage, **options)


def in_pieces(make: Any, piece_bytes: int = 1 << 17, **options: Any) -> Callable[[str, Any], Any]:
    return lambda path, storage: make(path, storage_options=storage, **options).shard_pieces(
        piece_bytes=piece_bytes, shuffle=False
    )


def by_groups(path: str, storage: Any) -> Any:
    return RowGroupLister(path, storage_options=storage).read_parquet(storage_options=storage)


HALF = [("id", "<", ROWS // 2)]
STARTS = [number * (WIDTH + 16) for number in range(ROWS)]
INDEX = b"".join(b"%d %d\n" % (start, WIDTH + 16) for start in STARTS)
CASES = {
    "lines": Case(lines, reader(TextLineReader)),
    "lines in pieces": Case(lines, in_pieces(TextLineReader), 1.7),  # on both sides of each border
    "jsonl": Case(jsonl, reader(JsonlReader)),
    "csv": Case(csv, reader(CsvReader)),
    "parquet": Case(parquet, reader(ParquetReader)),
    "parquet by batches": Case(parquet, reader(ParquetReader, batch_size=50, format="python", use_threads=True)),
    "parquet filtered": Case(parquet, reader(ParquetReader, filter=[("id", ">=", 0)])),
    "parquet half": Case(parquet, reader(ParquetReader, filter=HALF), 0.6),
    "parquet a column": Case(parquet, reader(ParquetReader, ["of"], filter=HALF), 0.6),
    "parquet in pieces": Case(parquet, in_pieces(ParquetReader), 1.2),
    "parquet in pieces, filtered": Case(parquet, in_pieces(ParquetReader, filter=HALF), 0.7),
    "parquet by row groups": Case(parquet, by_groups, 1.2),
    "arrow": Case(arrow, reader(ArrowReader)),
    "arrow filtered": Case(arrow, reader(ArrowReader, filter=[("id", ">=", 0)])),
    "arrow in pieces": Case(arrow, in_pieces(ArrowReader, 1 << 18), 1.7),  # the end of the file in each
    "arrow stream": Case(arrow_stream, reader(ArrowReader)),
    "webdataset": Case(
        tar, reader(WebDatasetReader, decode=False), 2.2, counted=1 << 22
    ),  # the headers before the first link
    "tfrecord": Case(tfrecord, reader(TFRecordReader, parse=False)),
    "tfrecord in pieces": Case(tfrecord, in_pieces(TFRecordReader, parse=False), beside={"data.idx": INDEX}),
    "tfrecord by number": Case(
        tfrecord, lambda path, _: TFRecordFile(path, parse=False).to_iter_datapipe(), where=("local",)
    ),
    "zip": Case(zipped, reader(ZipReader), 1.2),
    "mds": Case(
        mds,
        lambda path, storage: MDSFile(os.path.dirname(path), storage_options=storage).to_iter_datapipe(),
        beside={"index.json": json.dumps(MDS_INDEX).encode()},
    ),
}
AT_URLS = [name for name, case in CASES.items() if "url" in case.where]


def put(case: Case, folder: Path, of: int) -> str:
    """A file that takes the place of the one before at once, as a careful writer's does."""
    (folder / "new").write_bytes(case.content(of))
    os.replace(folder / "new", folder / "data")
    for name, content in case.beside.items():
        (folder / name).write_bytes(content)
    return str(folder / "data")


def serve(case: Case, server: WebServer, of: int, failures: Any = ()) -> str:
    headers = {"ETag": f'"{of}"', "Accept-Ranges": "bytes"}
    server.pages["/data"] = Page(case.content(of), headers, failures=list(failures))
    for name, content in case.beside.items():
        server.pages[f"/{name}"] = Page(content, {"ETag": '"beside"', "Accept-Ranges": "bytes"})
    return f"{server.address}/data"


def told(items: list[Any], where: str) -> str:
    return repr(items).replace(where, "")


def read_over(node: Any, replace: Callable[[], Any]) -> tuple[list[Any], Exception | None]:
    """What comes, and what ends it, where the file is another one behind the tenth part of its records."""
    got: list[Any] = []
    try:
        for item in node:
            got.append(item)
            if len(got) == 20:
                replace()
    except Exception as error:
        return got, error
    return got, None


def check_of_one(case: Case, got: list[Any], error: Exception | None, whole: list[Any], where: str) -> None:
    assert told(got, where) == told(whole[: len(got)], where)
    if error is None:
        assert len(got) == len(whole)
    else:
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        assert "data" in text
        assert any(word in text for word in ("replaced", "has changed since", "another version"))


@pytest.mark.parametrize("name", CASES)
def test_a_local_file_that_is_replaced_is_one_file_or_an_error(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path = put(case, tmp_path, 0)
    whole = list(case.read(path, None))
    got, error = read_over(case.read(path, None), lambda: put(case, tmp_path, 1))
    check_of_one(case, got, error, whole, str(tmp_path))
    assert len(list(case.read(path, None))) == len(whole)
    assert told(list(case.read(path, None)), str(tmp_path)) != told(whole, str(tmp_path))


@pytest.mark.parametrize("name", AT_URLS)
def test_an_object_that_is_replaced_is_one_object_or_an_error(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    whole = list(case.read(put(case, tmp_path, 0), None))
    with web_server() as server:
        url = serve(case, server, 0)
        got, error = read_over(case.read(url, AHEAD), lambda: serve(case, server, 1))
        got = json.loads(json.dumps(got, default=repr).replace(server.address, str(tmp_path)))
    check_of_one(case, got, error, json.loads(json.dumps(whole, default=repr)), str(tmp_path))


@pytest.mark.parametrize("name", AT_URLS)
def test_a_server_that_fails_gives_the_same_and_each_byte_is_read_once(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    whole = told(list(case.read(put(case, tmp_path, 0), None)), str(tmp_path))
    with web_server() as server:
        url = serve(case, server, 0)
        assert told(list(case.read(url, {"ahead_bytes": case.counted})), server.address) == whole
        assert server.ranged < case.share * len(case.content(0)) + (1 << 17)
        url = serve(case, server, 0, [None, 503, None, {"after": 5000}, None, 429, None, None, 500])
        assert told(list(case.read(url, AHEAD)), server.address) == whole


@pytest.mark.parametrize("name", AT_URLS)
def test_what_is_kept_on_disk_is_not_asked_for_again(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    options = {"cache_dir": str(tmp_path), "cache_bytes": 1 << 26}
    with web_server() as server:
        first = told(list(case.read(serve(case, server, 0), options)), server.address)
        asked = server.ranged
        assert told(list(case.read(serve(case, server, 0), options)), server.address) == first
        assert server.ranged == asked
        assert told(list(case.read(serve(case, server, 1), options)), server.address) != first
