#!/usr/bin/env python3
"""What ``gpu_check.sh`` runs: tests, then measurements, each part within its share of the time, into one JSON file.

This process imports torch and forks itself for each measurement, so it never asks CUDA for anything: a process that has
may not be forked. Whether there is a GPU, another process finds out. What goes wrong in one part is noted, and the next
one begins; the file is written after each measurement and each part.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.rounds import in_turn
from benchmarks.harness.summary import summarise, value
from benchmarks.peers import PEERS

ROOT = Path(__file__).resolve().parents[1]

# Seconds that each part can count on, however long those before it take; what they leave is its as well.
SHARES = {"cuda tests": 110.0, "device": 110.0, "workers": 150.0, "other tests": 92.0}
CLOSING_S = 6.0  # kept for ending what runs, and for writing
CUDA_TESTS = ["tests/device", "tests/data", "tests/torchdata/test_pin_memory.py"]
CUDA_TESTS += ["tests/integrations/test_attention.py"]
OTHER_TESTS = ["tests/device", "tests/data"]
HANGS_S = 60  # a test, of which no one takes a tenth: it fails, and the others go on
DEVICE_LIMIT_S, WORKERS_LIMIT_S = 40.0, 15.0  # of one measurement


@dataclass(frozen=True)
class Curve:
    """A workload with numbers of workers. ``also``: the workload that is the same samples through DataLoader."""

    workload: str
    peers: list[str]
    figure: str
    also: str = ""
    options: dict[str, Any] = field(default_factory=dict)


CURVES = [
    Curve("p2", ["torchpipe", "dataloader", "torch"], "samples_per_s", "p10"),
    Curve("p3", ["torchpipe", "torch"], "bytes_per_s"),
    Curve("p11", ["dataloader", "torch"], "bytes_per_s"),
    Curve("p4", ["torchpipe", "dataloader", "torch"], "samples_per_s", "p12", {"least_s": 0.8}),
]

FACTS = """
import json, sys
import torch
found = torch.cuda.is_available()
facts = {"torch": torch.__version__, "built for CUDA": torch.version.cuda, "cuda": found}
if found:
    facts |= {"card": torch.cuda.get_device_name(0), "cards": torch.cuda.device_count()}
    facts["card memory GB"] = round(torch.cuda.get_device_properties(0).total_memory / 1e9, 1)
print(json.dumps(facts))
"""


class Run:
    """One run of the script: its results so far, what it did not reach, and its clock."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen = chosen
        self.folder: Path = chosen.folder
        self.end: float = chosen.began + chosen.minutes * 60 - CLOSING_S  # of the wall clock: the shell has begun it
        self.parts: list[str] = chosen.parts.split(",")
        self.document: dict[str, Any] = {"machine": machine(), "missing": missing()}
        self.document |= {"seconds": {}, "not reached": [], "errors": {}}

    @property
    def cuda(self) -> bool:
        return bool(self.document["machine"]["cuda"])

    def left(self, until: float | None = None) -> float:
        return min(self.end, until or self.end) - time.time()

    def until(self, part: str) -> float:
        later = self.parts[self.parts.index(part) + 1 :]
        return max(self.end - sum(SHARES[name] for name in later), min(self.end, time.time() + SHARES[part]))

    def write(self) -> None:
        """Whatever happens later, what there is counts."""
        path = self.folder / "gpu_check.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(self.document, indent=1) + "\n")
        os.replace(part, path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Tests and measures torchpipe where there is a GPU.")
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--began", type=float, default=time.time(), help="when the clock began, in seconds of the epoch"
    )
    parser.add_argument("--minutes", type=float, default=7.8, help="all of it takes at most so long")
    parser.add_argument("--parts", default=",".join(SHARES), help=f"of {', '.join(SHARES)}")
    parser.add_argument("--workers", default="1,2,4,8,16", help="numbers of workers to measure")
    known = [curve.workload for curve in CURVES]
    parser.add_argument("--workloads", default=",".join(known), help=f"to measure with workers, of {', '.join(known)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.4, help="how long each measurement is timed")
    parser.add_argument("--device", default="cuda", help="cpu: try the measurement of the device stage without a GPU")
    chosen = parser.parse_args(arguments)
    for name in chosen.parts.split(","):
        if name not in SHARES:
            parser.error(f"there is no part {name!r}; there are {', '.join(SHARES)}")
    chosen.folder.mkdir(parents=True, exist_ok=True)
    run = Run(chosen)
    run.write()
    print(f"{run.document['machine']}", flush=True)
    for name in run.parts:
        one_part(run, name)
    run.document["took_s"] = round(time.time() - chosen.began, 1)
    run.write()
    print("\n".join(["", *summary_of(run)]), flush=True)
    return exit_code(run)


def one_part(run: Run, name: str) -> None:
    """A part that goes wrong, or hangs where nothing else limits it, leaves the others their time and their results."""
    parts = {"cuda tests": cuda_tests, "device": device, "workers": workers, "other tests": other_tests}
    began = time.time()
    print(f"--- {name}", flush=True)
    if run.left() <= 0:
        run.document["not reached"].append(name)
    else:
        until = run.until(name)
        before = signal.signal(signal.SIGALRM, too_long)
        signal.setitimer(signal.ITIMER_REAL, run.left(until) + CLOSING_S)
        try:
            parts[name](run, until)
        except Exception:
            run.document["errors"][name] = traceback.format_exc()
            traceback.print_exc()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    run.document["seconds"][name] = round(time.time() - began, 1)
    run.write()


def too_long(number: int, frame: object) -> None:
    raise TimeoutError("this part has taken its share of the time, and does not end")


def machine() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "cuda": False,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "memory GB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "date": time.strftime("%Y-%m-%d"),
        "commit": answer_of(["git", "rev-parse", "HEAD"])[0] or None,
    }
    driver = answer_of(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])[0]
    found, trouble = answer_of([sys.executable, "-c", FACTS], limit_s=60)
    facts |= json.loads(found) if found else {"torch": importlib.metadata.version("torch"), "trouble": trouble[-1000:]}
    return facts | {"driver": driver or None}


def answer_of(command: list[str], limit_s: float = 20) -> tuple[str, str]:
    """The last line that a program says, if it ends well, and else what it complains of."""
    if shutil.which(command[0]) is None:
        return "", f"there is no {command[0]} here"
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return "", f"no answer within {limit_s:.0f} s"
    lines = done.stdout.splitlines()
    return (lines[-1].strip(), "") if done.returncode == 0 and lines else ("", done.stderr or f"code {done.returncode}")


def missing() -> list[str]:
    """The lines of gpu_check.txt whose package is not here, in whatever version."""
    found = []
    for line in (ROOT / "tools" / "gpu_check.txt").read_text().splitlines():
        wanted = line.split("#")[0].strip()
        try:
            if wanted:
                importlib.metadata.version(wanted.split("==")[0])
        except importlib.metadata.PackageNotFoundError:
            found.append(wanted)
    return found


# -- tests ------------------------------------------------------------------------------------------------------------


def cuda_tests(run: Run, until: float) -> None:
    if not run.cuda:
        run.document["cuda tests"] = {"skipped": "no CUDA here"}
        return
    run.document["cuda tests"] = tests(run, "cuda tests", "cuda", CUDA_TESTS, until)


def other_tests(run: Run, until: float) -> None:
    """Those that need no GPU: a build of torch with CUDA chooses other ways of starting processes, for instance."""
    if run.left(until) < 45:
        run.document["not reached"].append("other tests")
        return
    run.document["other tests"] = tests(run, "other tests", "not cuda and not xla", OTHER_TESTS, until)


def tests(run: Run, name: str, marks: str, paths: list[str], until: float) -> dict[str, Any]:
    report = run.folder.resolve() / f"{name.replace(' ', '_')}.jsonl"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-m", marks, "-p", "tools.gpu_tests", "-p", "no:cacheprovider"]
    command += ["-o", f"timeout={HANGS_S}", "-o", "timeout_grace=5", "--continue-on-collection-errors"]
    if importlib.util.find_spec("xdist") is not None:
        command += ["-n", str(min(12, run.document["machine"]["cores"])), "--dist", "worksteal"]
    environment = {**os.environ, "GPU_CHECK_REPORTS": str(report)}
    environment["HYPOTHESIS_PROFILE"] = "ci"  # the same examples each time
    with report.with_suffix(".log").open("w") as log:
        child = subprocess.Popen(
            [*command, *paths], cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        code: int | None = None
        try:
            code = child.wait(max(0.0, run.left(until)))
        except subprocess.TimeoutExpired:
            run.document["not reached"].append(f"the rest of the {name}")
        finally:
            end_session(child)
    return {"finished": code is not None, "code": code, **counted(report)}


def end_session(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def counted(report: Path) -> dict[str, Any]:
    """What the plugin wrote; a test whose call passed and whose teardown failed has failed."""
    outcomes: dict[str, str] = {}
    failures: list[dict[str, str]] = []
    for line in report.read_text().splitlines() if report.exists() else ():
        found = json.loads(line)
        if found["outcome"] == "failed":
            failures.append({"test": found["test"], "message": found["message"]})
        if outcomes.get(found["test"]) != "failed":
            outcomes[found["test"]] = found["outcome"]
    counts = {outcome: list(outcomes.values()).count(outcome) for outcome in ("passed", "failed", "skipped")}
    return {**counts, "failures": failures}


# -- measurements -----------------------------------------------------------------------------------------------------


def device(run: Run, until: float) -> None:
    """P8c: the device stage beside copies in the loop."""
    chosen = run.chosen
    if chosen.device == "cuda" and not run.cuda:
        run.document["p8c"] = {"skipped": "no CUDA here"}
        return
    import torchpipe  # noqa: F401  (before the forks)
    from benchmarks.harness.forked import run_forked
    from benchmarks.workloads import p8c_cuda

    results: list[dict[str, Any]] = []
    options = {"device": chosen.device, "workers": min(8, max(map(int, chosen.workers.split(","))))}
    for number, peer in ((n, peer) for n in range(chosen.rounds) for peer in in_turn(p8c_cuda.PEERS, n)):
        if run.left(until) < 5:
            run.document["not reached"].append(f"p8c {peer}, round {number + 1}")
            continue
        limit_s = min(DEVICE_LIMIT_S, run.left(until))
        results.append(run_forked("p8c", peer, 2 * chosen.seconds, options, limit_s=limit_s))
        print(told(results[-1]), flush=True)
        run.document["p8c"] = {**options, "summary": summarise(results), "results": results}
        run.write()


def workers(run: Run, until: float) -> None:
    """Curves over the number of workers: all points once, then all again, so that each has as many rounds."""
    from benchmarks.harness.forked import run_forked

    counts = [int(number) for number in run.chosen.workers.split(",")]
    curves = [curve for curve in CURVES if curve.workload in run.chosen.workloads.split(",")]
    prepare(photographs=any(curve.workload == "p4" for curve in curves))
    results: list[dict[str, Any]] = []
    points = list(points_of(curves, counts, run.chosen.rounds))
    for done, (number, curve, count, peer) in enumerate(points):
        if run.left(until) < 3:
            left = sorted({f"{c.workload} {p}, {n} workers, round {r + 1}" for r, c, n, p in points[done:]})
            run.document["not reached"] += left
            break
        options = {"workers": count, **curve.options}
        limit_s = min(WORKERS_LIMIT_S, run.left(until))
        result = run_forked(curve.workload, peer, run.chosen.seconds, options, limit_s=limit_s)
        results.append({**result, "round": number})
        print(told(results[-1]), flush=True)
        run.document["workers"] = {
            curve.workload: {"figure": curve.figure, "also": curve.also, **lines_of(curve, counts, results)}
            for curve in curves
        }
        run.document["results"] = results
        run.write()


def points_of(curves: list[Curve], counts: list[int], rounds: int) -> Iterator[tuple[int, Curve, int, str]]:
    for number in range(rounds):
        for curve in curves:
            for count in counts:
                for peer in in_turn(curve.peers, number):
                    yield number, curve, count, peer


def lines_of(curve: Curve, counts: list[int], results: list[dict[str, Any]]) -> dict[str, Any]:
    """For each peer the points (workers, median, least, greatest, rounds); and what went wrong."""
    lines: dict[str, list[list[float]]] = {}
    for count in counts:
        entries = summarise([r for r in results if r["workload"] == curve.workload and r["workers"] == count])
        for entry in entries:
            figure = entry["figures"].get(curve.figure)
            if figure is not None:
                point = [count, figure["median"], figure["min"], figure["max"], entry["rounds"]]
                lines.setdefault(entry["peer"], []).append(point)
    wrong = sorted(
        {f"{r['peer']}: {why}" for r in results if r["workload"] == curve.workload if (why := trouble_of(r))}
    )
    return {"lines": lines, "wrong": wrong}


def prepare(photographs: bool) -> None:
    """What all measurements read, once, before the forks: imports, the photographs, and what they are to look like."""
    import torchpipe  # noqa: F401
    from benchmarks.workloads import _photos, p3_images, p4_jpeg

    for peer in ("torchpipe", "dataloader", "torch"):
        importlib.import_module(f"benchmarks.peers.{PEERS[peer].module}")
    p3_images.make(0)
    try:
        for index in range(_photos.COUNT if photographs else 0):
            p4_jpeg._expected(index)
    except Exception as error:  # scikit-image is not here, or has other photographs
        print(f"P4 and P12 will have no figures: {type(error).__name__}: {error}", flush=True)


# -- what is told -----------------------------------------------------------------------------------------------------


def trouble_of(result: dict[str, Any]) -> str | None:
    return result.get("unsupported") or result.get("error")


def told(result: dict[str, Any]) -> str:
    figures = {key: result[key] for key in ("samples_per_s", "bytes_per_s", "step_ratio", "gb_per_s") if key in result}
    text = trouble_of(result) or " ".join(f"{key} {number:,.4g}" for key, number in figures.items())
    return f"{result['workload']} {result['peer']}, {result.get('workers', '-')} workers: {text}"


def summary_of(run: Run) -> list[str]:
    facts, document = run.document["machine"], run.document
    card = f"{facts['card']}, driver {facts['driver']}" if facts["cuda"] else "no CUDA here"
    lines = [
        f"{card}; torch {facts['torch']}, Python {facts['python']}, {facts['cores']} cores, {document['took_s']} s"
    ]
    for name in ("cuda tests", "other tests"):
        found = document.get(name, {"skipped": "not run"})
        lines.append(f"{name}: {found['skipped'] if 'code' not in found else tests_told(found)}")
    found = document.get("p8c", {"skipped": "not run"})
    figures = [f"{entry['peer'].removeprefix('cuda_')} {step_told(entry)}" for entry in found.get("summary", ())]
    lines.append(
        f"p8c on {found.get('device', 'cuda')}, x the step alone: {', '.join(figures) or found.get('skipped')}"
    )
    for curve in CURVES:
        found = document.get("workers", {}).get(curve.workload)
        if found is not None:
            name = f"{curve.workload} and {curve.also}" if curve.also else curve.workload
            lines.append(
                f"{name}, x torch: {curve_told(found)}{' WRONG: ' if found['wrong'] else ''}{found['wrong'] or ''}"
            )
    lines += [f"{name} went wrong: {text.splitlines()[-1]}" for name, text in document["errors"].items()]
    if document["missing"]:
        lines.append(f"packages that are not here: {', '.join(document['missing'])}")
    missed = document["not reached"]
    more = f" and {len(missed) - 4} more" if len(missed) > 4 else ""
    lines.append(f"not reached: {'; '.join(missed[:4]) or 'nothing'}{more}")
    return [*lines, f"written: {run.folder / 'gpu_check.json'}"]


def tests_told(found: dict[str, Any]) -> str:
    text = f"{found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped"
    names = ", ".join(failure["test"] for failure in found["failures"][:3])
    return text + ("" if found["finished"] else ", NOT FINISHED") + (f": {names}" if names else "")


def step_told(entry: dict[str, Any]) -> str:
    ratio = value([entry], "p8c", entry["peer"], "step_ratio")
    return f"{ratio:.3g}" if ratio is not None else f"({trouble_of(entry) or 'no figure'})"


def curve_told(found: dict[str, Any]) -> str:
    of_torch = {int(point[0]): point[1] for point in found["lines"].get("torch", ())}
    ours = {peer: points for peer, points in found["lines"].items() if peer != "torch"}
    return "; ".join(
        f"{peer} " + ", ".join(f"{p[0]:g}: {p[1] / of_torch[int(p[0])]:.2f}" for p in points if int(p[0]) in of_torch)
        for peer, points in ours.items()
    )


def exit_code(run: Run) -> int:
    tested = [run.document[name] for name in ("cuda tests", "other tests") if "code" in run.document.get(name, {})]
    if run.document["errors"] or any(found["code"] or found["failed"] or not found["finished"] for found in tested):
        return 1
    if "code" not in run.document.get("cuda tests", {}):
        return 2
    return 0 if not any(name in run.document["not reached"] for name in run.parts) else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["--missing"]:
        print(*missing(), sep="\n")
    else:
        sys.exit(main())
