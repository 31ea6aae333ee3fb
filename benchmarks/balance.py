#!/usr/bin/env python3
"""Ranks that are equally busy: what plans give, simulated, and what four ranks take whose samples take time.

    python benchmarks/balance.py                 both
    python benchmarks/balance.py simulate        at 8, 64 and 512 ranks, of 8 samples in a step each
    python benchmarks/balance.py ranks           4 processes over gloo, which sleep as long as their samples cost

Figures of the simulation are the slowest rank of each step over the mean, summed over steps: 1.00 is even. ``longest
step`` is what the longest step of a window costs over the mean step: the price of windows for costs with long tails.
Lengths: of the standard library's modules (a token is 4 bytes), drawn again at random, and of a log-normal distribution
with sigma 1.2; both are cut to a context of 8,192 tokens, as training does.
"""

from __future__ import annotations

import argparse
import heapq
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from torchpipe.data.ranks.balance import Integers, plan

__all__ = ["METHODS", "documents", "karmarkar_karp", "log_normal", "main", "simulated"]

CONTEXT = 8192
SIZE = 8  # samples of a rank in a step
RANKS = (8, 64, 512)
STEPS = 32

Method = Callable[[Integers, int, int], Integers]  # costs (samples), steps, ranks -> ordinals (steps, ranks, samples)


def documents(count: int) -> Integers:
    """Tokens of modules of the standard library."""
    sizes = [path.stat().st_size for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))]
    tokens = np.array([-(-size // 4) for size in sizes if size], np.int64)
    return np.minimum(CONTEXT, np.random.default_rng(0).choice(tokens, count))


def log_normal(count: int) -> Integers:
    lengths = np.ceil(np.random.default_rng(0).lognormal(6.5, 1.2, count)).astype(np.int64)
    return np.minimum(CONTEXT, lengths)


def in_turn(costs: Integers, steps: int, ranks: int) -> Integers:
    return np.arange(len(costs)).reshape(steps, ranks, -1)


def sorting(costs: Integers, steps: int, ranks: int) -> Integers:
    """Each step's samples by length, dealt to the ranks in turn."""
    rows = in_turn(costs, steps, ranks).reshape(steps, -1)
    order = np.argsort(-costs[rows], axis=1, kind="stable")
    return np.take_along_axis(rows, order, axis=1).reshape(steps, -1, ranks).swapaxes(1, 2)


def karmarkar_karp(costs: Integers, steps: int, ranks: int) -> Integers:
    """The largest differencing method with equal counts, as trainers use it: each step for itself."""
    rows = in_turn(costs, steps, ranks).reshape(steps, -1)
    return np.array([_differenced(costs[row].tolist(), row.tolist(), ranks) for row in rows])


def _differenced(costs: list[int], ordinals: list[int], ranks: int) -> list[list[int]]:
    ordered = sorted(zip(costs, ordinals))
    heap: list[Any] = []
    for number, at in enumerate(range(0, len(ordered), ranks)):  # as many for each rank: merged in groups of one each
        groups = sorted(((cost, [ordinal]) for cost, ordinal in ordered[at : at + ranks]), reverse=True)
        heapq.heappush(heap, (groups[-1][0] - groups[0][0], number, groups))
    number = len(heap)
    while len(heap) > 1:
        (_, _, some), (_, _, others) = heapq.heappop(heap), heapq.heappop(heap)
        merged = [(ours[0] + theirs[0], ours[1] + theirs[1]) for ours, theirs in zip(some, reversed(others))]
        merged.sort(key=lambda group: -group[0])
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], number, merged))
        number += 1
    return [held for _, held in heap[0][2]]


def longest_first(costs: Integers, steps: int, ranks: int) -> Integers:
    """Each step for itself: the longest to the rank that has least and has room."""
    found = []
    for row in in_turn(costs, steps, ranks).reshape(steps, -1):
        held: list[list[int]] = [[] for _ in range(ranks)]
        room = [(0, rank) for rank in range(ranks)]
        for ordinal in row[np.argsort(-costs[row], kind="stable")].tolist():
            load, rank = heapq.heappop(room)
            held[rank].append(ordinal)
            if len(held[rank]) < len(row) // ranks:
                heapq.heappush(room, (load + int(costs[ordinal]), rank))
        found.append(held)
    return np.array(found)


def _planned(window: int, costs: Integers, steps: int, ranks: int) -> Integers:
    size = len(costs) // steps
    parts = [costs[at : at + window * size, None] for at in range(0, len(costs), window * size)]
    plans = [plan(part, len(part) // size, ranks, size // ranks) for part in parts]
    return np.concatenate([found + number * window * size for number, found in enumerate(plans)])


METHODS: dict[str, Method] = {
    "in turn": in_turn,
    "sorted in a step": sorting,
    "Karmarkar-Karp": karmarkar_karp,
    "longest first": longest_first,
    "torchpipe, window=1": partial(_planned, 1),
    "torchpipe, window=2": partial(_planned, 2),
    "torchpipe, window=4": partial(_planned, 4),
    "torchpipe, window=8": partial(_planned, 8),
}


def simulated(method: Method, costs: Integers, steps: int, ranks: int) -> tuple[float, float, float]:
    """(slowest over mean, the longest of eight steps over their mean, milliseconds of the CPU for a step)."""
    began = time.process_time()
    found = method(costs, steps, ranks)
    took_ms = (time.process_time() - began) * 1e3 / steps
    loads = costs[found].sum(axis=2)
    whole = loads.sum(axis=1).reshape(-1, 8)
    longest = float((whole.max(axis=1) / whole.mean(axis=1)).mean())
    return float(loads.max(axis=1).sum() * ranks / loads.sum()), longest, took_ms


def simulate() -> None:
    for name, lengths in (("the standard library's modules", documents), ("log-normal", log_normal)):
        for power, cost in ((1, "tokens"), (2, "squared lengths")):
            print(f"\n{name}, {cost}\n\n| method | " + " | ".join(f"{ranks} ranks" for ranks in RANKS), end="")
            print(f" | longest step, {RANKS[1]} ranks |" + "".join(f" ms a step, {ranks} |" for ranks in RANKS))
            print("|---|" + "---|" * (2 * len(RANKS) + 1))
            for title, method in METHODS.items():
                rows = [simulated(method, lengths(STEPS * ranks * SIZE) ** power, STEPS, ranks) for ranks in RANKS]
                cells = [f"{slowest:.3f}" for slowest, _, _ in rows] + [f"{rows[1][1]:.2f}"]
                print(
                    f"| {title} | {' | '.join([*cells, *(f'{took_ms:.1f}' for _, _, took_ms in rows)])} |", flush=True
                )


# -- four ranks -----------------------------------------------------------------------------------------------------

_LENGTH, _BATCH, _SECOND = 1024, 4, 5e8  # squared tokens that take a second


def _rank(folder: str, rank: int, ranks: int) -> None:
    import torch
    import torch.distributed as dist

    from torchpipe import DataLoader
    from torchpipe.data import Balance, Ranks

    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    costs = documents(_LENGTH) ** 2
    found = []
    for balance in (None, Balance(costs, window=1), Balance(costs, window=8), None, Balance(costs, window=8)):
        generator = torch.Generator().manual_seed(0)
        indices: Any = range(_LENGTH)
        loader: DataLoader[Any] = DataLoader(
            indices, _BATCH, shuffle=True, generator=generator, distributed=Ranks(balance=balance)
        )
        seen = 0
        stream = iter(loader)
        dist.barrier()
        began = time.perf_counter()
        for batch in stream:
            time.sleep(int(costs[batch.numpy()].sum()) / _SECOND)  # forward and backward
            dist.all_reduce(torch.zeros(1))  # the gradients
            seen += len(batch)
        figures = loader.stats().balance
        predicted = "" if figures is None else f"{figures.slowest_without:.3f} -> {figures.slowest:.3f}"
        found.append((balance, time.perf_counter() - began, predicted))
        assert seen * ranks == _LENGTH
    if rank == 0:
        ideal = float(costs.sum()) / ranks / _SECOND
        print(f"\n{ranks} ranks, {_LENGTH} samples; with ranks that never wait: {ideal:.2f} s\n")
        for balance, took_s, predicted in found:
            title = "in turn" if balance is None else f"window={balance.window}"
            print(f"| {title} | {took_s:.2f} s | {took_s / ideal:.3f} | {predicted} |")
    dist.destroy_process_group()


def ranks(count: int = 4) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, os.path.abspath(__file__), "rank", folder]
        children = [subprocess.Popen([*command, str(rank), str(count)]) for rank in range(count)]
        codes = [child.wait() for child in children]
        if any(codes):
            raise SystemExit("a rank has failed")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["simulate", "ranks"])
    what = parser.parse_args(arguments).what
    if what[0] == "rank":
        _rank(what[1], int(what[2]), int(what[3]))
        return
    for name in what:
        {"simulate": simulate, "ranks": ranks}[name]()


if __name__ == "__main__":
    main()
