"""Runs a fresh process for each (workload, peer, round), peers in turn within a round, and collects the results.

Runs in the runner: imports no loader, so that no peer's environment matters.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from benchmarks.harness.environments import ROOT, interpreter
from benchmarks.harness.summary import BUSY
from benchmarks.peers import PEERS

__all__ = ["in_turn", "result_of", "run_child", "run_rounds"]

LIMIT_S = 120.0
_SURE = 2  # rounds that are run whatever the time


def run_child(
    workload: str,
    peer: str,
    seconds: float,
    options: dict[str, Any] | None = None,
    *,
    python: Path | None = None,
    limit_s: float = LIMIT_S,
) -> dict[str, Any]:
    """One measurement in a process of its own, and nothing of it left behind. Failures come back as ``error``."""
    blank = {"workload": workload, "peer": peer, **(options or {})}
    python = python or interpreter(PEERS[peer].environment)
    if python is None:
        return {**blank, "unsupported": f"no environment {PEERS[peer].environment!r}: `make bench` sets it up"}
    command = [str(python), "-m", "benchmarks.harness.child", workload, peer, str(seconds), json.dumps(options or {})]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PJRT_DEVICE": "CPU", "PYTHONWARNINGS": "ignore"}
    # Installed packages are compiled; where this is set, this one alone would be compiled anew in each worker.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    # Files, not pipes: a worker that outlives the child would keep a pipe open.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as problems:
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=problems, start_new_session=True
        )
        try:
            code: int | None = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_session(child)
        return result_of(output, problems, blank, code, limit_s)


def result_of(
    output: IO[str], problems: IO[str], blank: dict[str, Any], code: int | None, limit_s: float
) -> dict[str, Any]:
    """What a process wrote: its last line of JSON, else ``blank`` with an error. ``code``: of its exit, if it ended."""
    output.seek(0)
    problems.seek(0)
    lines, trouble = output.read().splitlines(), problems.read()[-2000:]
    for line in reversed(lines):
        if line.startswith("{"):
            result: dict[str, Any] = json.loads(line)
            if "error" in result:
                result["stderr"] = trouble
            return result
    if code is None:
        return {**blank, "error": f"no result within {limit_s:.0f} s: it hangs, or is far too slow", "stderr": trouble}
    return {**blank, "error": f"exit code {code} without a result", "stderr": trouble}


def _end_session(child: subprocess.Popen[bytes]) -> None:
    """End what a loader left running: the child leads a session, so this reaches its workers and nothing else."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def in_turn(peers: list[str], number: int) -> list[str]:
    """The order of round ``number``: each begins with another peer, and every other one runs backwards."""
    shift = number % len(peers) if peers else 0
    order = peers[shift:] + peers[:shift]
    return order if number % 2 == 0 else order[::-1]


def run_rounds(
    plan: dict[str, list[str]],
    rounds: int,
    seconds: float,
    report: Callable[[dict[str, Any]], None],
    python: Path | None = None,
    limit_s: float | None = None,
) -> Iterator[dict[str, Any]]:
    """Every (workload, peer) of ``plan``, ``rounds`` times. A peer that cannot do a workload is asked only once.

    After the first two rounds, those that the machine was too busy for come first, and nothing is begun once
    ``limit_s`` seconds have passed.
    """
    hopeless: set[tuple[str, str]] = set()
    quiet: Counter[tuple[str, str]] = Counter()
    started = time.monotonic()
    for number in range(rounds):
        order = [(workload, peer) for workload, peers in plan.items() for peer in in_turn(peers, number)]
        if number >= _SURE:
            order.sort(key=lambda pair: quiet[pair])
        for workload, peer in order:
            if (workload, peer) in hopeless:
                continue
            if number >= _SURE and limit_s is not None and time.monotonic() - started > limit_s:
                return
            result = run_child(workload, peer, seconds, python=python)
            result["round"] = number
            if "unsupported" in result or "hangs" in result.get("error", ""):
                hopeless.add((workload, peer))
            quiet[workload, peer] += result.get("others", 1.0) <= BUSY
            report(result)
            yield result
