"""P24: documents of 2 kB out of jsonl and parquet, as one shard of 1, 8 and 128 gets them, without workers.

What a rank of a large run has to wait for if every shard reads all files. Runs in the measured process.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.harness.environments import ROOT
from benchmarks.harness.job import Unsupported
from benchmarks.harness.measure import Meter
from benchmarks.harness.stream import WrongData

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P24 documents of one shard of several"
UNIT = "jsonl_128_per_s"
PEERS = ["one_shard_pieces", "one_shard_whole"]

SHARDS = (1, 8, 128)
DOCUMENTS, FILES = 32_768, 4
ROWS = 128  # in a row group: about as many bytes as a piece of text has
PIECE_BYTES = 1 << 18
WARM_UP = 20  # documents: the buffer is full then
_FOLDER = ROOT / ".bench" / "documents"


def document(number: int) -> dict[str, Any]:
    return {"id": number, "text": f"{number:08} " * (200 + number % 50)}


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    """``seconds`` for each of jsonl and parquet with each number of shards."""
    from torchpipe.iter import JsonlReader, ParquetReader

    _write()
    meter, figures = Meter(), {}
    for kind, reader in (("jsonl", JsonlReader), ("parquet", ParquetReader)):
        graph = peer.graph(reader(str(_FOLDER / f"*.{kind}")), PIECE_BYTES)
        _check(graph)
        for shards in SHARDS:
            figures[f"{kind}_{shards}_per_s"] = _rate(graph, shards, seconds)
    return figures | {"others": meter.read().others}


def _passes(graph: Any, shards: int) -> Iterator[dict[str, Any]]:
    """Documents of one shard, epoch after epoch."""
    from torchpipe import iterate

    epoch = 0
    while True:
        yield from iterate(graph, seed=1, epoch=epoch, shard=shards // 2, num_shards=shards)
        epoch += 1


def _rate(graph: Any, shards: int, seconds: float) -> float:
    stream = _passes(graph, shards)
    for _ in range(WARM_UP):
        next(stream)
    began, count, last = time.perf_counter(), 0, None
    while (now := time.perf_counter()) < began + seconds:
        last = next(stream)
        count += 1
    if last != document(last["id"] if last else 0):
        raise WrongData(f"the last document is not what was written: {str(last)[:80]}")
    return count / (now - began)


def _check(graph: Any) -> None:
    """Raises: WrongData unless two shards together have each document once, as it was written."""
    from torchpipe import iterate

    found: Counter[int] = Counter()
    for shard in range(2):
        for each in iterate(graph, seed=1, shard=shard, num_shards=2):
            if each != document(each["id"]):
                raise WrongData(f"document {each['id']} is not what was written")
            found[each["id"]] += 1
    if found != Counter(range(DOCUMENTS)):
        raise WrongData(f"{len(found)} of {DOCUMENTS} documents came, {found.total()} times")


def _write() -> None:
    """Four files of each kind, once. Raises: Unsupported without pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as missing:
        raise Unsupported(f"parquet is written by pyarrow: {missing}") from None
    _FOLDER.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        text, table = (Path(_FOLDER / f"{number}.{kind}") for kind in ("jsonl", "parquet"))
        if text.exists() and table.exists():
            continue
        documents = [document(each) for each in range(number, DOCUMENTS, FILES)]
        text.with_suffix(".part").write_text("".join(json.dumps(each) + "\n" for each in documents))
        os.replace(text.with_suffix(".part"), text)
        pq.write_table(pa.Table.from_pylist(documents), f"{table}.part", row_group_size=ROWS, compression=None,
                       use_dictionary=False)  # fmt: skip
        os.replace(f"{table}.part", table)


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p24"])
