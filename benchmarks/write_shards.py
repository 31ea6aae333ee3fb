"""Writing shards: torchpipe in process, with 1 and 2 workers, beside ``webdataset.ShardWriter``, which writes tar files
as well, and litData's ``optimize`` with 1 and 2 workers, which writes chunks of its own format. In one run.

    python benchmarks/write_shards.py [--mb 1000] [--rounds 3] [--folder FOLDER]

Two workloads: *ready*, samples of 100 kB that lie in memory, and *made*, JPEG files that Pillow encodes for each sample
(some 100 kB). All is on disk when the time ends (``os.sync()``). A fresh process for each result, the writers in
turn; then every sample is read, with ``tarfile`` or litData's own reader, and compared. Writers that are not installed
are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

SAMPLE_BYTES = 100_000
SHARD_BYTES = 1 << 28
WRITERS = ("webdataset", "litdata 1", "litdata 2", "in process", "1 worker", "2 workers")
PEERS = ("webdataset", "litdata")


@cache
def contents() -> list[bytes]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, SAMPLE_BYTES, np.uint8).tobytes() for _ in range(64)]


@cache
def pictures() -> list[Any]:
    from PIL import Image

    rng = np.random.default_rng(0)
    small = [rng.integers(0, 256, (120, 160, 3), np.uint8) for _ in range(16)]
    return [Image.fromarray(each).resize((640, 480), Image.Resampling.BICUBIC) for each in small]


def sample(workload: str, number: int) -> dict[str, Any]:
    if workload == "ready":
        data = contents()[number % 64]
    else:
        buffer = io.BytesIO()
        pictures()[number % 16].save(buffer, "JPEG", quality=90)
        data = buffer.getvalue()
    return {"__key__": f"{number:08d}", "jpg": data, "cls": number}


def write(writer: str, workload: str, count: int, folder: str) -> float:
    """Seconds."""
    sample(workload, 0)
    if writer == "webdataset":
        import webdataset

        os.sync()
        start = time.perf_counter()
        with webdataset.ShardWriter(f"{folder}/out-%05d.tar", maxsize=SHARD_BYTES, verbose=0) as shards:
            for number in range(count):
                shards.write(sample(workload, number))
    elif writer.startswith("litdata"):
        import litdata

        os.sync()
        start = time.perf_counter()
        litdata.optimize(
            partial(sample, workload),
            inputs=list(range(count)),
            output_dir=folder,
            chunk_bytes=SHARD_BYTES,
            num_workers=int(writer[-1]),
            verbose=False,
        )
    else:
        from reading_services import MultiProcessingReadingService
        from torchpipe import write_shards
        from torchpipe.iter import IterableWrapper

        workers = 0 if writer == "in process" else int(writer[0])
        service = MultiProcessingReadingService(workers) if workers else None
        graph = IterableWrapper(range(count)).sharding_filter().map(partial(sample, workload))
        os.sync()
        start = time.perf_counter()
        write_shards(graph, f"{folder}/out-{{:05d}}.tar", max_bytes=SHARD_BYTES, reading_service=service)
    os.sync()
    return time.perf_counter() - start


def check(writer: str, workload: str, count: int, folder: str) -> int:
    """Every sample, once, and in order from all but litData. Returns the bytes of all shards."""
    if writer.startswith("litdata"):
        return check_chunks(workload, count, folder)
    number = 0
    for path in sorted(Path(folder).glob("*.tar")):
        with tarfile.open(path) as archive:
            found: dict[str, bytes] = {}
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None
                found[member.name] = file.read()
        expected: dict[str, bytes] = {}
        for _ in range(len(found) // 2):
            want = sample(workload, number)
            expected |= {f"{want['__key__']}.jpg": want["jpg"], f"{want['__key__']}.cls": str(want["cls"]).encode()}
            number += 1
        assert found == expected, f"{path} holds something else"
    assert number == count
    return sum(path.stat().st_size for path in Path(folder).glob("*.tar"))


def check_chunks(workload: str, count: int, folder: str) -> int:
    import litdata

    found = litdata.StreamingDataset(folder, max_cache_size="100GB")
    numbers = set()
    for item in found:
        assert item == sample(workload, item["cls"])
        numbers.add(item["cls"])
    assert numbers == set(range(count))
    assert len(found) == count
    return sum(path.stat().st_size for path in Path(folder).glob("*.bin"))


def measured(writer: str, workload: str, count: int, parent: str | None) -> float:
    """MB/s."""
    folder = tempfile.mkdtemp(dir=parent)
    try:
        command = [sys.executable, __file__, "--one", json.dumps([writer, workload, count, folder])]
        seconds = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
        return check(writer, workload, count, folder) / 1e6 / seconds
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder")
    parser.add_argument("--one")
    given = parser.parse_args()
    if given.one:
        print(write(*json.loads(given.one)))
        return
    missing = {peer for peer in PEERS if importlib.util.find_spec(peer) is None}
    writers = [name for name in WRITERS if name.split()[0] not in missing]
    for workload in ("ready", "made"):
        count = given.mb * 1_000_000 // SAMPLE_BYTES
        rates: dict[str, list[float]] = {writer: [] for writer in writers}
        for turn in range(given.rounds):
            for writer in writers[turn % len(writers) :] + writers[: turn % len(writers)]:
                rates[writer].append(measured(writer, workload, count, given.folder))
        for writer, found in rates.items():
            low, middle, high = min(found), statistics.median(found), max(found)
            print(f"{workload:6} {writer:11} {middle:6.0f} MB/s ({low:.0f} to {high:.0f})", flush=True)


if __name__ == "__main__":
    main()
