#!/usr/bin/env python3
"""Slow samples: an epoch's time, and how long the loop waits for a batch, where some samples take much longer.

    python benchmarks/slow_samples.py [--workers 2 4 8] [--samples 960] [--only sleep] [--out slow.json]

``sleep``: samples sleep BASE_MS, and TAIL of them TIMES as long. ``jpeg``: JPEGs that Pillow has made, of mixed sizes
(the logarithm of their pixels is normal), decoded and scaled to SIDE x SIDE. ``even``: as ``sleep``, without a tail. Of
each: torch's loader in order and with ``in_order=False``, and torchpipe's with ``fetch="batches"`` and
``fetch="samples"``, with persistent workers, in an epoch after the first. Before anything is timed, each loader's data
are compared with torch's.

``over``: the epoch's seconds / (the seconds that making its samples took, as measured within them / workers). The loop
does nothing else but wait, or with ``--step`` sleeps as long for each batch as workers take for one. Runs take turns,
and of each the median is told.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from torchpipe import DataLoader

__all__ = ["main"]

BATCH, SIDE = 32, 224
BASE_MS, TAIL, TIMES = 5.0, 0.02, 50
PIXELS, SPREAD, FILES = 300_000, 1.2, 64  # of the JPEGs: median, deviation of the logarithm, how many differ
LOADERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "torch": (TorchDataLoader, {}),
    "torch, in_order=False": (TorchDataLoader, {"in_order": False}),
    "torchpipe, batches": (DataLoader, {"fetch": "batches"}),
    "torchpipe, samples": (DataLoader, {"fetch": "samples"}),
}


class Sleeping(Dataset[tuple[int, float]]):
    """Samples: (index, seconds it took)."""

    def __init__(self, samples: int, tail: float) -> None:
        chance = random.Random(1)
        self.seconds = [BASE_MS / 1e3 * (TIMES if chance.random() < tail else 1) for _ in range(samples)]

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, index: int) -> tuple[int, float]:
        began = time.perf_counter()
        time.sleep(self.seconds[index])
        return index, time.perf_counter() - began


class Images(Dataset[tuple[torch.Tensor, int, float]]):
    """Samples: (3 x SIDE x SIDE bytes, index, seconds it took)."""

    def __init__(self, samples: int) -> None:
        chance = np.random.default_rng(1)
        self.samples = samples
        self.files = [_jpeg(chance, float(chance.lognormal(np.log(PIXELS), SPREAD))) for _ in range(FILES)]

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, float]:
        began = time.perf_counter()
        image = Image.open(io.BytesIO(self.files[index * 7919 % FILES])).convert("RGB").resize((SIDE, SIDE))
        pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).contiguous()
        return pixels, index, time.perf_counter() - began


def _jpeg(chance: np.random.Generator, pixels: float) -> bytes:
    side = max(16, round(pixels**0.5))
    coarse = Image.fromarray(chance.integers(0, 256, (side // 8 + 1, side // 8 + 1, 3), np.uint8))
    file = io.BytesIO()
    coarse.resize((side, side)).save(file, "JPEG", quality=90)
    return file.getvalue()


def loader_of(name: str, data: Dataset[Any], workers: int) -> Any:
    kind, options = LOADERS[name]
    return kind(data, batch_size=BATCH, num_workers=workers, persistent_workers=True, **options)


def check(data: Dataset[Any], workers: int) -> None:
    """Raises: AssertionError if a loader's batches are not torch's, in order, or each once where there is none."""
    wanted = [batch[:-1] for batch in loader_of("torch", data, workers)]
    for name, (_, options) in LOADERS.items():
        found = [batch[:-1] for batch in loader_of(name, data, workers)]
        if not options.get("in_order", True):
            found.sort(key=lambda batch: int(batch[-1][0]))
        assert len(found) == len(wanted), name
        for batch, other in zip(found, wanted):
            assert len(batch) == len(other), name
            assert all(map(torch.equal, batch, other)), name


def timed(loader: Any, step_s: float) -> dict[str, float]:
    """One epoch of a loader whose workers have started."""
    waits, made_s, began = [], 0.0, time.perf_counter()
    stream = iter(loader)
    while True:
        asked = time.perf_counter()
        batch = next(stream, None)
        waits.append(time.perf_counter() - asked)
        if batch is None:
            break
        made_s += float(batch[-1].sum())
        time.sleep(step_s)
    epoch_s, ideal_s = time.perf_counter() - began, made_s / loader.num_workers
    quantiles = np.quantile(waits[:-1], [0.5, 0.99])
    return {
        "epoch_s": epoch_s,
        "over": epoch_s / ideal_s,
        "samples_s": len(loader.dataset) / epoch_s,
        "first_ms": waits[0] * 1e3,
        "p50_ms": float(quantiles[0]) * 1e3,
        "p99_ms": float(quantiles[1]) * 1e3,
    }


def measured(data: Dataset[Any], workers: int, rounds: int, steps: bool) -> dict[str, dict[str, float]]:
    """Of each loader, medians over ``rounds``."""
    loaders = {name: loader_of(name, data, workers) for name in LOADERS}
    for loader in loaders.values():
        for _ in loader:
            pass
    step_s = 0.0
    if steps:
        plain = timed(loaders["torch"], 0.0)
        step_s = plain["epoch_s"] / plain["over"] / len(loaders["torch"])
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in loaders}
    for _ in range(rounds):
        for name, loader in loaders.items():
            runs[name].append(timed(loader, step_s))
    return {name: {key: statistics.median(run[key] for run in of) for key in of[0]} for name, of in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--samples", type=int, default=960)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["sleep", "jpeg", "even"])
    parser.add_argument("--step", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    kinds: dict[str, Any] = {
        "sleep": lambda: Sleeping(options.samples, TAIL),
        "jpeg": lambda: Images(options.samples),
        "even": lambda: Sleeping(options.samples, 0.0),
    }
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; batches of {BATCH}, {options.samples} samples")
    results: dict[str, Any] = {}
    for kind in [options.only] if options.only else kinds:
        data = kinds[kind]()
        check(data, min(options.workers))
        for workers in options.workers:
            found = results[f"{kind}, {workers} workers"] = measured(data, workers, options.rounds, options.step)
            print(f"\n{kind}, {workers} workers (data checked)")
            for name, row in found.items():
                print(f"  {name:22}" + "".join(f"  {key} {value:8.2f}" for key, value in row.items()), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
