#!/usr/bin/env python3
"""Run workloads with peers, rounds alternating, and write JSON.

    python benchmarks/run.py p1 p3 --peers torchpipe,torch --rounds 3

Runs in the runner's process; each measurement has a process of its own, in its peer's environment (``make bench`` sets
them up). Imports no loader.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness.environments import ROOT
from benchmarks.harness.rounds import run_rounds
from benchmarks.harness.summary import summarise
from benchmarks.peers import PEERS
from benchmarks.workloads import WORKLOADS

__all__ = ["constants", "main"]


def constants(workload: str) -> dict[str, Any]:
    """TITLE, UNIT and PEERS of a workload, read from its source: the runner need not have what it imports."""
    source = (ROOT / "benchmarks" / "workloads" / f"{WORKLOADS[workload]}.py").read_text()
    found: dict[str, Any] = {}
    for line in ast.parse(source).body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            name = line.targets[0].id
            if name in ("TITLE", "UNIT", "PEERS"):
                try:
                    found[name] = ast.literal_eval(line.value)
                except ValueError:  # another workload's: UNIT = p3_images.UNIT
                    other = ast.unparse(line.value).split(".")[0]
                    found[name] = constants(_key(other))[name]
    return found


def _key(module: str) -> str:
    return next(key for key, name in WORKLOADS.items() if name == module)


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="torchpipe beside other loaders", epilog=f"peers: {', '.join(PEERS)}")
    known = f"of {', '.join(WORKLOADS)}; default: all but p8c"
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=known)
    parser.add_argument("--peers", help="a comma-separated list; default: all that the workload knows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="how long each is timed (default 1.5)")
    parser.add_argument("--minutes", type=float, help="begin no measurement of the third and later rounds after that")
    parser.add_argument("--out", type=Path, help="a JSON file; default: none, the table alone")
    parser.add_argument("--python", type=Path, help="measure every peer with this interpreter")
    chosen = parser.parse_args(arguments)
    for name in chosen.workloads:
        if name not in WORKLOADS:
            parser.error(f"there is no workload {name!r}; there are {', '.join(WORKLOADS)}")
    for name in chosen.peers.split(",") if chosen.peers else ():
        if name not in PEERS:
            parser.error(f"there is no peer {name!r}; there are {', '.join(PEERS)}")
    if chosen.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {chosen.rounds}")
    return chosen


def main(arguments: list[str] | None = None) -> None:
    chosen = _arguments(arguments)
    names = chosen.workloads or [name for name in WORKLOADS if name != "p8c"]  # which tools/gpu_check.sh measures
    about = {name: constants(name) for name in names}
    wanted = chosen.peers.split(",") if chosen.peers else None
    plan = {name: [peer for peer in about[name]["PEERS"] if wanted is None or peer in wanted] for name in names}
    started = time.time()
    limit_s = None if chosen.minutes is None else chosen.minutes * 60
    results = list(run_rounds(plan, chosen.rounds, chosen.seconds, _print_result, chosen.python, limit_s))
    summary = summarise(results)
    for name in names:
        _print_table(about[name], [entry for entry in summary if entry["workload"] == name])
    if chosen.out is not None:
        _write(
            chosen.out,
            {
                "machine": _machine(),
                "took_s": time.time() - started,
                "rounds": chosen.rounds,
                "seconds": chosen.seconds,
                "about": about,
                "summary": summary,
                "results": results,
            },
        )


def _machine() -> dict[str, Any]:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpus": os.cpu_count(),
        "memory_gb": round(memory_bytes / 1e9, 1),
        "system": platform.system(),
        "machine": platform.machine(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _write(path: Path, document: dict[str, Any]) -> None:
    """Replace what a JSON file has of the measured workloads, and keep the others, and the scaling curves."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    for key in ("summary", "results"):
        others = [entry for entry in kept.get(key, ()) if entry["workload"] not in document["about"]]
        document[key] = others + document[key]
    for result in document["results"]:
        result.pop("stderr", None)  # it has paths of this machine
    document["about"] = {**kept.get("about", {}), **document["about"]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**kept, **document}, indent=1) + "\n")
    print(f"\nwritten: {path}")


def _print_result(result: dict[str, Any]) -> None:
    figures = {key: round(number, 3) for key, number in result.items() if isinstance(number, float)}
    text = result.get("unsupported") or result.get("error") or figures
    print(f"round {result['round']} {result['workload']:4} {result['peer']:12} {text}", file=sys.stderr, flush=True)


def _print_table(about: dict[str, Any], entries: list[dict[str, Any]]) -> None:
    unit = about["UNIT"]
    print(f"\n{about['TITLE']} ({unit})")
    reference = next(
        (e["figures"][unit]["median"] for e in entries if e["peer"] == "torch" and unit in e["figures"]), 0
    )
    for entry in entries:
        figure = entry["figures"].get(unit)
        if figure is None:
            print(f"  {entry['peer']:12} {entry.get('unsupported') or entry.get('error') or 'no figure'}")
            continue
        ratio = f"{figure['median'] / reference:8.2f} x torch" if reference else ""
        extra = "  ".join(
            f"{name} {entry['figures'][name]['median']:.4g}"
            for name in ("cpu_us_per_sample", "pss_mb", "others")
            if name in entry["figures"]
        )
        busy = "  ALL ROUNDS BUSY" if entry["all_busy"] else f"  rounds: {entry['rounds']}"
        print(
            f"  {entry['peer']:12} {figure['median']:14,.4g} ({figure['min']:,.4g} - {figure['max']:,.4g}) "
            f"{ratio}  {extra}{busy}"
        )


if __name__ == "__main__":
    main()
