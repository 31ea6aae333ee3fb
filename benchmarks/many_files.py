"""Millions of paths, and 10,000 tar shards: start, first batch, memory of workers, resume.

    python benchmarks/many_files.py [--paths 10000000] [--samples 1000000] [--shards 10000] [--workers 2 8]

*Paths*: a map-style dataset that holds them, read at random by torch's ``DataLoader`` and torchpipe's, with a plain
list and with ``shared_list``, under fork and spawn; a fresh process for each row. Memory is what all workers take
together, when the samples have been read: *private* pages, which no other process has, and their *PSS*, in which a page
that n processes share counts as 1/n. Rows that this machine has no memory for are left out.

*Shards*: small ones, in a folder of their own, each worker reading its own part; a resume in the middle.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils.data import Dataset, RandomSampler

BATCH = 1000
SAMPLES = 3  # in a shard
LIST_BYTES = 130  # of a path in a list


class Paths(Dataset[int]):
    def __init__(self, paths: Any) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        return len(self.paths[index])


def mb(pids: list[int]) -> tuple[float, float]:
    """(private, PSS) of all."""
    private = pss = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Private_"):
                private += int(line.split()[1])
            elif line.startswith("Pss:"):
                pss += int(line.split()[1])
    return private / 1e3, pss / 1e3


def paths_row(loader_of: str, held: str, method: str, workers: int, count: int, samples: int) -> dict[str, float]:
    from torchpipe import DataLoader, shared_list

    start = time.perf_counter()
    names = (f"/data/images/train/{number % 1000:04d}/picture_{number:09d}.jpg" for number in range(count))
    dataset = Paths(list(names) if held == "list" else shared_list(names))
    row = {"build s": time.perf_counter() - start}
    kind: Any = torch.utils.data.DataLoader if loader_of == "torch" else DataLoader
    sampler = RandomSampler(dataset, replacement=True, num_samples=samples)
    loader = kind(dataset, BATCH, sampler=sampler, num_workers=workers, multiprocessing_context=method)
    start = time.perf_counter()
    for number, _ in enumerate(loader):
        if number == 0:
            row["first batch s"] = time.perf_counter() - start
        if number == samples // BATCH - workers * 2 - 1:  # all have what is left to do
            pids = [
                child.pid
                for child in psutil.Process().children()
                if "resource_tracker" not in " ".join(child.cmdline())
            ]
            row["private MB"], row["PSS MB"] = mb(pids)
    row["samples/s"] = samples / (time.perf_counter() - start)
    return row


def write_shards_into(folder: Path, count: int) -> None:
    for number in range(count):
        with tarfile.open(folder / f"part-{number:05d}.tar", "w") as file:
            for index in range(SAMPLES):
                data = f"{number} {index}".encode()
                info = tarfile.TarInfo(f"{number:05d}{index}.txt")
                info.size = len(data)
                file.addfile(info, io.BytesIO(data))


def open_files(pids: list[int]) -> int:
    """The most descriptors that one has."""
    return max(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)


def shards_row(folder: str, half: int, workers: int) -> dict[str, float]:
    from reading_services import MultiProcessingReadingService
    from torchpipe import DataLoader2
    from torchpipe.iter import PathList

    def made() -> Any:
        graph = PathList(f"{folder}/*.tar").shuffle().sharding_filter().read_webdataset().batch(32)
        return DataLoader2(graph, reading_service=MultiProcessingReadingService(workers))

    start = time.perf_counter()
    row: dict[str, float] = {}
    batches, most = 0, 0
    with made() as loader:
        row["start s"] = time.perf_counter() - start
        for _ in loader:
            if not batches:
                row["first batch s"] = time.perf_counter() - start
            batches += 1
            if batches % 20 == 0:
                most = max(most, open_files(loader.reading_service.worker_pids()))
            if batches == half:
                state = loader.state_dict()
        row["epoch s"] = time.perf_counter() - start
    row["open files"] = most
    row["state kB"] = len(state["payload"]) / 1e3
    start = time.perf_counter()
    with made() as loader:
        loader.load_state_dict(state)
        rest = 0
        for _ in loader:
            if not rest:
                row["first batch of a resume s"] = time.perf_counter() - start
            rest += 1
    assert rest + half == batches
    return row


def shown(name: str, row: dict[str, float]) -> None:
    print(f"{name:<44}" + "  ".join(f"{key} {value:,.4g}" for key, value in row.items()), flush=True)


def in_process(*arguments: Any) -> dict[str, float]:
    command = [sys.executable, __file__, "--row", json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", type=int, default=10_000_000)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--row", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row is not None:
        part, *arguments = options.row
        print(json.dumps((paths_row if part == "paths" else shards_row)(*arguments)))
        return
    for workers in options.workers if options.paths else ():
        for method in ("fork", "spawn"):
            for loader, held in (
                ("torch", "list"),
                ("torch", "shared"),
                ("torchpipe", "list"),
                ("torchpipe", "shared"),
            ):
                name = f"{loader}, {held}, {method}, {workers} workers"
                if held == "list" and options.paths * LIST_BYTES * (workers + 2) > psutil.virtual_memory().available:
                    print(f"{name:<44}left out: there is no memory for so many copies", flush=True)
                    continue
                shown(name, in_process("paths", loader, held, method, workers, options.paths, options.samples))
    if options.shards:
        with tempfile.TemporaryDirectory() as folder:
            write_shards_into(Path(folder), options.shards)
            for workers in options.workers:
                name = f"{options.shards:,} tar shards, {workers} workers"
                shown(name, in_process("shards", folder, options.shards * SAMPLES // 64, workers))


if __name__ == "__main__":
    main()
