"""P24: documents of 2 kB out of four kinds of files, as one shard of 1, 8 and 128 gets them, without workers.

What a rank of a large run has to wait for if every shard reads all files. Runs in the measured process. A peer has
``KINDS`` of files that it reads, and ``documents(kind, files, piece_bytes, epoch, shard, shards)``.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from benchmarks.harness.environments import ROOT
from benchmarks.harness.job import Unsupported
from benchmarks.harness.measure import Meter
from benchmarks.harness.stream import WrongData

__all__ = ["KINDS", "PEERS", "TITLE", "UNIT", "run"]

TITLE = "P24 documents of one shard of several"
UNIT = "jsonl_128_per_s"
PEERS = ["one_shard_pieces", "one_shard_whole", "one_shard_webdataset", "one_shard_datasets", "one_shard_grain"]

KINDS = ("jsonl", "parquet", "tar", "tfrecord")
SHARDS = (1, 8, 128)
DOCUMENTS, FILES = 32_768, 4
ROWS = 128  # in a row group: about as many bytes as a piece of text has
PIECE_BYTES = 1 << 18
WARM_UP = 20  # documents: the buffer is full then
_FOLDER = ROOT / ".bench" / "documents"


Documents: TypeAlias = Callable[[int, int, int], Iterator[dict[str, Any]]]
"""Of an epoch, a shard and a number of shards."""


def document(number: int) -> dict[str, Any]:
    return {"id": number, "text": f"{number:08} " * (200 + number % 50)}


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    """``seconds`` for each kind of files that the peer reads, with each number of shards."""
    _write()
    meter, figures = Meter(), {}
    for kind in KINDS:
        if kind in peer.KINDS:
            documents = partial(peer.documents, kind, tuple(map(str, _files(kind))), PIECE_BYTES)
            _check(documents)
            for shards in SHARDS:
                figures[f"{kind}_{shards}_per_s"] = _rate(documents, shards, seconds)
    return figures | {"others": meter.read().others}


def _passes(documents: Documents, shards: int) -> Iterator[dict[str, Any]]:
    """Documents of one shard, epoch after epoch."""
    for epoch in count():
        yield from documents(epoch, shards // 2, shards)


def _rate(documents: Documents, shards: int, seconds: float) -> float:
    stream = _passes(documents, shards)
    for _ in range(WARM_UP):
        next(stream)
    began, number, last = time.perf_counter(), 0, None
    while (now := time.perf_counter()) < began + seconds:
        last = next(stream)
        number += 1
    if last != document(last["id"] if last else 0):
        raise WrongData(f"the last document is not what was written: {str(last)[:80]}")
    return number / (now - began)


def _check(documents: Documents) -> None:
    """Raises: WrongData unless two shards together have each document once, as it was written."""
    found: Counter[int] = Counter()
    for shard in range(2):
        for each in documents(0, shard, 2):
            if each != document(each["id"]):
                raise WrongData(f"document {each['id']} is not what was written")
            found[each["id"]] += 1
    if found != Counter(range(DOCUMENTS)):
        raise WrongData(f"{len(found)} of {DOCUMENTS} documents came, {found.total()} times")


def _write() -> None:
    """Four files of each kind, once. Raises: Unsupported without pyarrow and crc32c."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from torchpipe.formats.tfrecord import check_crc32c, write_record

        check_crc32c()
    except ImportError as missing:
        raise Unsupported(f"the files are written by pyarrow and crc32c: {missing}") from None
    _FOLDER.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        text, table, archive, records = (_FOLDER / f"{number}.{kind}" for kind in KINDS)
        if all(path.exists() for path in (text, table, archive, records)):
            continue
        documents = [document(each) for each in range(number, DOCUMENTS, FILES)]
        text.with_suffix(".part").write_text("".join(json.dumps(each) + "\n" for each in documents))
        os.replace(text.with_suffix(".part"), text)
        pq.write_table(pa.Table.from_pylist(documents), f"{table}.part", row_group_size=ROWS, compression=None,
                       use_dictionary=False)  # fmt: skip
        os.replace(f"{table}.part", table)
        with tarfile.open(f"{archive}.part", "w") as tar, open(f"{records}.part", "wb") as file:
            for each in documents:
                content = json.dumps(each).encode()
                write_record(file, content)
                info = tarfile.TarInfo(f"{each['id']:08}.json")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        os.replace(f"{archive}.part", archive)
        os.replace(f"{records}.part", records)


def _files(kind: str) -> list[Path]:
    return [_FOLDER / f"{number}.{kind}" for number in range(FILES)]


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p24"])
