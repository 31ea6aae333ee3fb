#!/usr/bin/env python3
"""How a run scales, from 1 to 1,024 shards: simulated beyond this machine, and measured beside it as far as it goes.

    python benchmarks/simulate.py --out benchmarks/scale.json

Simulated: FILES files of jsonl (sizes log-normal, MEAN_MB on average), in the pieces that ``shard_pieces()`` makes of
them, dealt as it deals them (a permutation, every n-th piece), against ``shuffle().sharding_filter()`` behind the
reader, by which each shard reads all. Each node has NODE_RANKS ranks. Assumed, and printed with the results: a node
reads NODE_MB_S from its storage, shared by its shards; opening a file or asking for its size takes OPEN_MS; a shard
decodes DOCUMENTS_S documents of DOCUMENT_KB; a step takes a batch from each shard of a rank, and all ranks wait for the
slowest. A slow node reads at SLOW of the others' rate. A lost node takes its ranks with it; what is left hosts the
shards as torchpipe deals them (``Part``). Nothing else is modelled: no cache of the system, no network but storage.

With the engine's workers in memory (``tests/engine``): a rank of 16 workers, of which one is lost, under the real
supervisor; what is counted is how many items are made again.

Measured here: bytes that one shard reads of its files, the size of a state, and the seconds of ``state_dict()`` and
``torch.save``. All runs in the runner's process.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from torchpipe import DataLoader2, InProcessReadingService, iterate
from torchpipe.execution.epoch import Part
from torchpipe.iter import IterableWrapper, JsonlReader
from torchpipe.state import SnapshotPolicy

__all__ = ["main"]

SHARDS = (1, 8, 64, 128, 512, 896, 1024)
FILES, MEAN_MB, SPREAD = 10_000, 100.0, 0.5  # SPREAD: of the logarithm
PIECE_MB, NODE_RANKS, NODE_MB_S, OPEN_MS = 32.0, 8, 2000.0, 20.0
DOCUMENTS_S, DOCUMENT_KB, BUFFER, BATCH = 15_000.0, 2.0, 1_000, 32
SLOW, PLAN_THREADS = 0.5, 16
RANKS, RANKS_LEFT = 64, 56
MEASURED_STATES = (1, 8, 32, 128)
MEASURED_BYTES = (1, 8, 128, 1024)


def simulated(shards: int) -> dict[str, Any]:
    """What ``shards`` shards on up to RANKS ranks come to, by pieces and by reading all."""
    chance = np.random.default_rng(1)
    sizes = MEAN_MB * chance.lognormal(-SPREAD * SPREAD / 2, SPREAD, FILES)
    counts = np.maximum(1, np.ceil(sizes / PIECE_MB)).astype(int)
    pieces = chance.permutation(np.repeat(sizes / counts, counts))
    own = np.array([pieces[shard::shards].sum() for shard in range(shards)])
    total, ranks = float(sizes.sum()), min(RANKS, shards)
    nodes = -(-ranks // NODE_RANKS)
    on_node = shards / nodes
    rate = min(NODE_MB_S / on_node, DOCUMENTS_S * DOCUMENT_KB / 1024)  # MB a second that a shard gets through
    plan_s = FILES * OPEN_MS / 1e3 / PLAN_THREADS
    fill_mb = (BUFFER + BATCH) * DOCUMENT_KB / 1024
    slow_rate = min(SLOW * NODE_MB_S / on_node, DOCUMENTS_S * DOCUMENT_KB / 1024)
    return {
        "shards": shards,
        "ranks": ranks,
        "read_tb": {"pieces": total / 1e6, "all": total * shards / 1e6},
        "imbalance": {"pieces": float(own.max() / own.mean()), "all": 1.0},
        "first_batch_s": {
            "pieces": plan_s + OPEN_MS / 1e3 + fill_mb / rate,
            "all": OPEN_MS / 1e3 + fill_mb * shards / rate,
        },
        "epoch_min": {"pieces": float(own.max()) / rate / 60, "all": total / rate / 60},
        "epoch_min_slow_node": {"pieces": float(own.max()) / slow_rate / 60, "all": total / slow_rate / 60},
        "makes_each_item_on_ranks": Part.of(0, RANKS_LEFT, shards).turns if shards >= RANKS else None,
    }


def counted(number: int) -> int:
    _CALLS[number] += 1
    return number


_CALLS: Counter[int] = Counter()


def lost_worker(every: int) -> dict[str, Any]:
    """A rank of 16 shards on 16 workers in memory, of which one is lost half way: what is made again."""
    from tests.engine.memory_pool import MemoryReadingService

    items = 16 * 200
    _CALLS.clear()
    policy = partial(SnapshotPolicy, every=every)
    service = MemoryReadingService(16, random.Random(1), policy=policy)
    graph = IterableWrapper(range(items)).sharding_filter().map(counted)
    with DataLoader2(graph, reading_service=service) as loader:
        found = []
        for item in loader:
            found.append(item)
            if len(found) == items // 2:
                assert service.pool is not None
                service.pool.kill(3, own=False, begun=False)
        assert sorted(found) == list(range(items))
        return {"snapshot_every": every, "items": items, "made_again": _CALLS.total() - items}


def documents(folder: Path, count: int) -> list[str]:
    paths = []
    for file in range(4):
        path = folder / f"{file}.jsonl"
        lines = (json.dumps({"id": n, "text": f"{n:08} " * 220}) for n in range(file, count, 4))
        path.write_text("\n".join(lines) + "\n")
        paths.append(str(path))
    return paths


def _read_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(lines[0].split()[1])


def measured_bytes(paths: list[str], shards: int) -> dict[str, Any]:
    total = sum(Path(path).stat().st_size for path in paths)
    graph = JsonlReader(paths).shard_pieces(piece_bytes=max(1, total // 2500))
    before, seen = _read_bytes(), 0
    for _ in iterate(graph, seed=1, shard=shards // 2, num_shards=shards):
        seen += 1
    return {"shards": shards, "documents": seen, "times_its_share": (_read_bytes() - before) / (total / shards)}


def measured_state(paths: list[str], shards: int) -> dict[str, Any]:
    total = sum(Path(path).stat().st_size for path in paths)
    graph = JsonlReader(paths).shard_pieces(piece_bytes=max(1, total // 600)).shuffle(buffer_size=BUFFER)
    with DataLoader2(graph, reading_service=InProcessReadingService(num_shards=shards)) as loader:
        loader.seed(1)
        stream = iter(loader)
        for _ in range(2 * shards):
            next(stream)
        began = time.perf_counter()
        state = loader.state_dict()
        took = time.perf_counter() - began
        with tempfile.NamedTemporaryFile() as file:
            began = time.perf_counter()
            torch.save(state, file)
            saved = time.perf_counter() - began
        began = time.perf_counter()
        loader.state_dict(exact=True)
        exact = time.perf_counter() - began
    size = len(state["payload"])
    return {"shards": shards, "mb": size / 1e6, "state_dict_s": took, "torch_save_s": saved, "exact_s": exact}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="how a run scales, simulated and measured")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--documents", type=int, default=140_000, help="of about 2 kB, for what is measured")
    chosen = parser.parse_args(arguments)
    assumed = {name: value for name, value in globals().items() if name.isupper() and isinstance(value, int | float)}
    found: dict[str, Any] = {"assumed": assumed, "simulated": [], "lost_worker": [], "measured": {}}
    print("assumed:", ", ".join(f"{name}={value:g}" for name, value in assumed.items()), flush=True)
    for shards in SHARDS:
        found["simulated"].append(row := simulated(shards))
        print("simulated:", json.dumps(row, default=float), flush=True)
    for every in (10, 100):
        found["lost_worker"].append(row := lost_worker(every))
        print("lost worker, engine in memory:", json.dumps(row), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        paths = documents(Path(folder), chosen.documents)
        for name, measure, sizes in (
            ("bytes", measured_bytes, MEASURED_BYTES),
            ("state", measured_state, MEASURED_STATES),
        ):
            found["measured"][name] = []
            for shards in sizes:
                found["measured"][name].append(row := measure(paths, shards))
                print(f"measured {name}:", json.dumps(row), flush=True)
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(found, indent=1, default=_rounded) + "\n")
        print(f"written: {chosen.out}")


def _rounded(value: Any) -> Any:
    return float(value) if math.isfinite(value) else None


if __name__ == "__main__":
    main()
