#!/usr/bin/env python3
"""Scaling curves: workers, item sizes, stages, resume positions, epochs; into the JSON file of ``run.py``.

    python benchmarks/scaling.py workers stages --out benchmarks/results.json

Runs in the runner's process; each point has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness.rounds import run_child

__all__ = ["CURVES", "main"]

_RESUME = (3, 31, 312, 3_125, 31_250)  # batches of 32: 10^2 to 10^6 samples

# name: the workload, its option's values, the peers, what is drawn
CURVES: dict[str, dict[str, Any]] = {
    "workers": {
        "workload": "scale_workers",
        "options": [{"workers": workers} for workers in (1, 2, 3, 4)],
        "peers": ["torchpipe", "torch", "nodes", "spdl"],
        "figure": "samples_per_s",
        "label": "workers (each sample waits 1 ms)",
    },
    "item_size": {
        "workload": "scale_item_size",
        "options": [{"size": size} for size in (8, 1 << 10, 1 << 15, 1 << 18, 1 << 20, 1 << 23, 1 << 26)],
        "peers": ["torchpipe", "torch", "spdl_arena"],
        "figure": "bytes_per_s",
        "label": "bytes in an item",
    },
    "stages": {
        "workload": "p7",
        "options": [{"stages": stages} for stages in (1, 5, 10, 20)],
        "peers": ["torchpipe", "torch", "nodes", "generator"],
        "figure": "ns_per_item",
        "label": "identity maps, in process",
    },
    "resume": {
        "workload": "p6",
        "options": [{"positions": list(_RESUME)}],
        "peers": ["torchpipe", "nodes", "stateful"],
        "figure": "resume_ms",
        "label": "batches of 32 after which it resumes (shuffle buffer of 1,000)",
    },
    "epochs": {
        "workload": "p9",
        "options": [{"epochs": 100}],
        "peers": ["torchpipe", "torch"],
        "figure": "memory_mb_of_epoch",
        "label": "epoch",
    },
}
_SHORTER = {"stateful": {"positions": list(_RESUME[:4])}}  # it replays: the last position would take minutes


def points(curve: dict[str, Any], result: dict[str, Any], option: dict[str, Any]) -> list[tuple[float, float]]:
    """The points (x, y) that one result gives."""
    if "positions" in option:
        return [(k, result[f"resume_ms_{k}"]) for k in option["positions"]]
    if "epochs" in option:
        return [(number + 1, pss) for number, pss in enumerate(result["memory_mb_of_epoch"])]
    return [(next(iter(option.values())), result[curve["figure"]])]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="scaling curves")
    parser.add_argument("curves", nargs="*", metavar="CURVE", help=f"of {', '.join(CURVES)}; default: all")
    parser.add_argument("--seconds", type=float, default=0.8)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args(arguments)
    for name in chosen.curves:
        if name not in CURVES:
            parser.error(f"there is no curve {name!r}; there are {', '.join(CURVES)}")
    measured = {name: _measure(name, chosen.seconds) for name in chosen.curves or CURVES}
    if chosen.out is not None:
        document = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
        document["scaling"] = {**document.get("scaling", {}), **measured}
        chosen.out.write_text(json.dumps(document, indent=1) + "\n")
        print(f"written: {chosen.out}")


def _measure(name: str, seconds: float) -> dict[str, Any]:
    curve = CURVES[name]
    lines: dict[str, list[tuple[float, float]]] = {}
    others: list[float] = []
    for option in curve["options"]:
        for peer in curve["peers"]:
            wanted = {**option, **_SHORTER.get(peer, {})} if "positions" in option else option
            result = run_child(curve["workload"], peer, seconds, wanted)
            if "error" in result or "unsupported" in result:
                print(f"{name} {peer} {wanted}: {result.get('error') or result['unsupported']}", flush=True)
                continue
            got = points(curve, result, wanted)
            others.append(result.get("others", 0.0))
            lines.setdefault(peer, []).extend(got)
            shown = got if len(got) < 8 else [got[0], got[len(got) // 2], got[-1]]
            print(f"{name} {peer} " + " ".join(f"{x:g}: {y:.5g}" for x, y in shown), flush=True)
    return {
        "label": curve["label"],
        "figure": curve["figure"],
        "lines": lines,
        "others": round(max(others, default=0.0), 3),
    }


if __name__ == "__main__":
    main()
