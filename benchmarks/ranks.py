#!/usr/bin/env python3
"""What ranks cost: states of one and of all, taking one up at another number of ranks, agreeing about every step.

    python benchmarks/ranks.py --out benchmarks/results.json

Starts 1, 2, 4 and 8 processes that talk through gloo; rank 0 measures. 8 shards in all, of integers that lie at hand:
next to nothing is measured but what the ranks do for each other. Beside the time there is rank 0's CPU time, with that
of gloo's threads: where there are fewer cores than ranks, time is mostly waiting for the others to run at all. The
curves join those of ``scaling.py`` in the file.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness.measure import Meter

__all__ = ["CURVES", "main", "measure"]

WORLDS = (1, 2, 4, 8)
SHARDS = 8
_BUFFER = 100  # shuffled in each shard, for states that hold something
_STEPS = 500
_CALLS = 30
_SAVED_AT = 100

# name: what is drawn, and of what
CURVES = {
    "ranks_state": ("CPU us a call of state_dict", "ranks (8 shards in all, shuffle buffers of 100)"),
    "ranks_bytes": ("bytes of a state", "ranks (8 shards in all, shuffle buffers of 100)"),
    "ranks_step": ("CPU us a step", "ranks: agreeing about each step, about 8 at once, not at all"),
    "ranks_wall": ("us a step", "ranks: the same, as time"),
    "ranks_resume": ("ms to the first item", "ranks that take up the state of all of 2"),
}


def _services(kind: str) -> Any:
    from reading_services import DistributedReadingService, OrdinalReadingService

    match kind:
        case "no agreement":
            return OrdinalReadingService(0, total_shards=SHARDS)
        case "drop, a rank's own shard":  # without a total: each rank has one shard
            return DistributedReadingService(60)
        case "drop":
            return DistributedReadingService(60, total_shards=SHARDS)
        case "drop, 8 at once":
            return DistributedReadingService(60, total_shards=SHARDS, agree_every=8)
    raise ValueError(kind)


def _steps(kind: str) -> tuple[float, float]:
    """Microseconds a step, of CPU time and of time. Raises: ValueError if an item is not the one that belongs there."""
    import torch.distributed as dist

    from torchpipe import DataLoader2
    from torchpipe.iter import IterableWrapper

    rank, world = dist.get_rank(), dist.get_world_size()
    graph: Any = IterableWrapper(range(world * SHARDS * _STEPS)).sharding_filter()
    with DataLoader2(graph, reading_service=_services(kind)) as loader:
        stream = iter(loader)
        first = [next(stream) for _ in range(100)]
        dist.barrier()
        began, spent = time.perf_counter(), time.process_time()
        items = [next(stream) for _ in range(_STEPS)]
        took, used = time.perf_counter() - began, time.process_time() - spent
    if [*first, *items] != list(range(rank, world * (100 + _STEPS), world)):
        raise ValueError(f"{kind}: rank {rank} of {world} had other items than those that are its own")
    dist.barrier()
    return used / _STEPS * 1e6, took / _STEPS * 1e6


def _states(folder: Path) -> dict[str, float]:
    import torch.distributed as dist

    from torchpipe import DataLoader2
    from torchpipe.iter import IterableWrapper
    from torchpipe.state import merge

    graph: Any = IterableWrapper(range(100_000)).sharding_filter().shuffle(buffer_size=_BUFFER)
    figures: dict[str, float] = {}
    with DataLoader2(graph, reading_service=_services("drop")) as loader:
        loader.seed(0)
        stream = iter(loader)
        for _ in range(_SAVED_AT):
            next(stream)
        for states in ("own", "all"):
            dist.barrier()
            began, spent = time.perf_counter(), time.process_time()
            for _ in range(_CALLS):
                state = loader.state_dict(states)  # type: ignore[arg-type]
            figures[f"{states} us"] = (time.perf_counter() - began) / _CALLS * 1e6
            figures[f"{states} cpu us"] = (time.process_time() - spent) / _CALLS * 1e6
            figures[f"{states} bytes"] = len(pickle.dumps(state))
        told: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(told, loader.state_dict("own"))
    if merge(told) != state:
        raise ValueError("the state of all ranks is not that of their own, merged")
    if dist.get_rank() == 0:
        (folder / f"state.{dist.get_world_size()}").write_bytes(pickle.dumps(state))
    dist.barrier()
    return figures


def _resume(folder: Path) -> float | None:
    import torch.distributed as dist

    from torchpipe import DataLoader2
    from torchpipe.iter import IterableWrapper

    saved = folder / "state.2"
    if not saved.exists():
        return None
    graph: Any = IterableWrapper(range(100_000)).sharding_filter().shuffle(buffer_size=_BUFFER)
    state = pickle.loads(saved.read_bytes())
    times = []
    for _ in range(5):
        dist.barrier()
        began = time.perf_counter()
        with DataLoader2(graph, reading_service=_services("drop")) as loader:
            loader.load_state_dict(state)
            next(iter(loader))
            times.append(time.perf_counter() - began)
    return sorted(times)[2] * 1e3


def measure(folder: Path, rank: int, world: int) -> None:
    """What one rank does; rank 0 prints the figures."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = f"file://{folder / f'store.{world}'}"
    dist.init_process_group("gloo", store, timedelta(seconds=120), rank=rank, world_size=world)
    meter = Meter()
    kinds = ("no agreement", "drop, a rank's own shard", "drop", "drop, 8 at once")
    figures: dict[str, Any] = {"step": {kind: _steps(kind) for kind in kinds}}
    figures |= {"state": _states(folder), "resume": _resume(folder), "others": meter.read().others}
    dist.barrier()
    if rank == 0:
        print("FIGURES " + json.dumps(figures), flush=True)
    dist.destroy_process_group()


def _run(folder: Path, world: int) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.ranks", "--rank", str(rank), "--world", str(world), "--in", str(folder)],
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        for rank in range(world)
    ]
    said = processes[0].communicate()[0]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise RuntimeError(f"a rank of {world} has failed: run it with --world {world} --rank ... to see why")
    line = next(line for line in said.splitlines() if line.startswith("FIGURES "))
    return json.loads(line.removeprefix("FIGURES "))  # type: ignore[no-any-return]


def _curves(results: dict[int, dict[str, Any]]) -> dict[str, Any]:
    lines: dict[str, dict[str, list[tuple[int, float]]]] = {name: {} for name in CURVES}
    for world, result in results.items():
        for states in ("own", "all"):
            lines["ranks_state"].setdefault(states, []).append((world, result["state"][f"{states} cpu us"]))
            lines["ranks_bytes"].setdefault(states, []).append((world, result["state"][f"{states} bytes"]))
        for kind, (cpu_us, us) in result["step"].items():
            lines["ranks_step"].setdefault(kind, []).append((world, cpu_us))
            lines["ranks_wall"].setdefault(kind, []).append((world, us))
        if result["resume"] is not None:
            lines["ranks_resume"].setdefault("torchpipe", []).append((world, result["resume"]))
    others = round(max(result["others"] for result in results.values()), 3)
    return {
        name: {"label": label, "figure": figure, "lines": lines[name], "others": others}
        for name, (figure, label) in CURVES.items()
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="what ranks cost")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--world", type=int)
    parser.add_argument("--in", type=Path, dest="folder")
    chosen = parser.parse_args(arguments)
    if chosen.rank is not None:
        measure(chosen.folder, chosen.rank, chosen.world)
        return
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for world in (2, *(other for other in WORLDS if other != 2)):  # first the one whose state others take up
            results[world] = _run(Path(folder), world)
            print(f"{world} ranks: {json.dumps(results[world])}", flush=True)
    curves = _curves(dict(sorted(results.items())))
    if chosen.out is not None:
        document = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
        document["scaling"] = {**document.get("scaling", {}), **curves}
        chosen.out.write_text(json.dumps(document, indent=1) + "\n")
        print(f"written: {chosen.out}")


if __name__ == "__main__":
    main()
