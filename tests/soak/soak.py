"""Kills processes at random moments, in every way, while loaders run, and compares every item with the oracle's.

Run as ``python -m tests.soak.soak --kills 200``; prints JSON and exits with 1 unless all was exact. The consumer is the
main thread; the killer a thread, one kill at a time. An exit code is the victim's own doing: it is ordered by a file.
Then every cell of the fault matrix (``tests/faults``) is run once.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reading_services import Restart
from tests.laws.executors import make_loader, make_service, oracle, pids
from tests.laws.graphs import GraphSpec, build
from tests.soak.matrix import run_matrix
from torchpipe.graph import replace_node
from torchpipe.iter import IterableWrapper
from torchpipe.node.traits import walk

__all__ = ["GRAPHS", "WAYS", "Case", "report", "run_case"]

WAYS = ("SIGKILL", "SIGSEGV", "SIGTERM", "exit 0", "exit 1", "SIGSTOP")
TIMEOUT_S = 1.0
_GIVE_UP_S = 180.0  # a process under spawn takes seconds to start on a busy machine
_UNNEEDED_S = 5.0

GRAPHS: dict[str, GraphSpec] = {
    "augment": (
        200,
        (("shuffle", 4),),
        (("global_random", 1), ("item_random", 1), ("shuffle", 3), ("batch", 2)),
        False,
    ),
    "uneven": (200, (), (("filter", 3), ("flatmap_lazy", 1), ("shuffle", 5), ("enumerate", 1)), False),
    "dispatched": (200, (("global_random", 1), ("shuffle", 4)), (("item_random", 1), ("batch", 3)), True),
}


@dataclass(frozen=True)
class Case:
    """A graph on worker processes of one start method, and how many of them are to be killed."""

    graph: str
    context: str
    kills: int
    workers: int = 2
    shards: int = 3


@dataclass
class Kill:
    """One process killed: when, when the supervisor said so, and when the first item after that was delivered."""

    how: str
    pid: int
    at: float = 0.0
    detected: float | None = None
    item: float | None = None
    needed: bool = True  # else it died when nothing more was needed of it in its epoch


@dataclass
class Outcome:
    case: Case
    kills: list[Kill] = field(default_factory=list)
    epochs: int = 0
    items: int = 0
    faults: list[str] = field(default_factory=list)


class Ordered:
    """Hands items on, and ends its process when a file with its pid says how."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, item: Any) -> Any:
        order = Path(self.folder, str(os.getpid()))
        try:
            code = int(order.read_text())
        except (FileNotFoundError, ValueError):  # none, or not yet written whole
            return item
        Path(self.folder, f"{os.getpid()}.done").write_text(repr(time.monotonic()))
        os._exit(code)


class Detections(logging.Handler):
    """When the library said of which process that it is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.times: dict[int, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        found = re.search(r"\(pid (\d+)\)", record.getMessage())
        if found:
            self.times.setdefault(int(found[1]), time.monotonic())


class Killer(threading.Thread):
    """Kills one process after the other; the next one only when an item has come after the last one's detection."""

    def __init__(self, loader: Any, case: Case, folder: str, rng: random.Random, detections: Detections) -> None:
        super().__init__(name="killer")
        self.loader, self.case, self.folder, self.rng, self.detections = loader, case, folder, rng, detections
        self.kills: list[Kill] = []
        self.faults: list[str] = []
        self.last_item = 0.0
        self.over = threading.Event()

    def run(self) -> None:
        ways = [WAYS[index % len(WAYS)] for index in range(self.case.kills)]
        self.rng.shuffle(ways)
        try:
            for how in ways:
                self.over.wait(self.rng.uniform(0, 0.08))
                self._kill(how)
        except Exception as error:
            self.faults.append(f"the killer itself failed: {error!r}")
        finally:
            self.over.set()

    def _kill(self, how: str) -> None:
        while not (running := pids(self.loader) if how != "SIGSTOP" else self._ready()):
            if self.over.wait(0.001):
                return
        kill = Kill(how, self.rng.choice(running), time.monotonic())
        done = Path(self.folder, f"{kill.pid}.done")
        if how.startswith("exit"):
            Path(self.folder, str(kill.pid)).write_text(how[-1])
        else:
            try:
                os.kill(kill.pid, getattr(signal, how))
            except ProcessLookupError:
                return
        deadline = kill.at + _GIVE_UP_S
        while kill.item is None and time.monotonic() < deadline and not self.over.wait(0.0005):
            if how.startswith("exit") and done.exists() and done.read_text():
                kill.at = float(done.read_text())
            kill.detected = self.detections.times.get(kill.pid)
            if kill.detected is not None and self.last_item > kill.detected:
                kill.item = self.last_item
            elif (
                kill.detected is None and time.monotonic() > kill.at + _UNNEEDED_S and kill.pid not in pids(self.loader)
            ):
                kill.needed = False
                break
        if kill.needed and kill.item is None and not self.over.is_set():
            self.faults.append(f"{how} of {kill.pid}: no item within {_GIVE_UP_S} s (detected: {kill.detected})")
        self.kills.append(kill)

    def _ready(self) -> list[int]:
        """Only these: one that stops while it starts is given 120 s, since importing torch can take that long."""
        workers = self.loader.reading_service._pool or ()
        return [worker.pid for worker in workers if worker.ready and worker.is_alive()]


def run_case(case: Case, seed: int = 0) -> Outcome:
    """Run the case's graph, epoch after epoch, until its kills are done."""
    outcome = Outcome(case)
    detections = Detections()
    log = logging.getLogger("torchpipe")
    log.addHandler(detections)
    propagate, log.propagate = log.propagate, False
    with tempfile.TemporaryDirectory() as folder:
        graph = _with_orders(GRAPHS[case.graph], folder)
        expected = oracle(graph, case.shards, epochs=3)
        # Deaths at one position by chance are not what is looked for: a large budget
        service = make_service(
            case.workers,
            case.shards,
            context=case.context,
            every=3,
            on_worker_death=Restart(max_deaths=1000),
            timeout=TIMEOUT_S,
        )
        with make_loader(graph, service) as loader:
            killer = Killer(loader, case, folder, random.Random(seed), detections)
            killer.start()
            try:
                while not killer.over.is_set() and not outcome.faults:
                    _one_epoch(loader, expected, outcome, killer)
            except Exception as error:
                outcome.faults.append(f"epoch {loader.epoch}, item {outcome.items}: {error!r}")
            finally:
                killer.over.set()
                killer.join()
                log.removeHandler(detections)
                log.propagate = propagate
    outcome.kills = killer.kills
    outcome.faults += killer.faults
    return outcome


def _one_epoch(loader: Any, expected: list[list[str]], outcome: Outcome, killer: Killer) -> None:
    number = outcome.epochs % len(expected)
    loader.set_epoch(number)
    count = 0
    for count, item in enumerate(loader, 1):
        killer.last_item = time.monotonic()
        if count > len(expected[number]) or repr(item) != expected[number][count - 1]:
            outcome.faults.append(f"epoch {number}, item {count - 1} is not the oracle's: {item!r}")
            return
        outcome.items += 1
        if count % 8 == 0:
            killer.over.wait(0.001)  # a training step, now and then
    if count != len(expected[number]):
        outcome.faults.append(f"epoch {number} ended after {count} of {len(expected[number])} items")
    outcome.epochs += 1


def _with_orders(spec: GraphSpec, folder: str) -> Any:
    """The graph of ``spec`` with a stage that obeys orders in each kind of process."""
    graph = build(spec).map(Ordered(folder))
    if spec[3]:
        source = next(node for node in walk(graph) if isinstance(node, IterableWrapper))
        graph = replace_node(graph, source, source.map(Ordered(folder)))
    return graph


def report(outcomes: list[Outcome]) -> dict[str, Any]:
    """The figures, in seconds."""
    kills = [kill for outcome in outcomes for kill in outcome.kills]
    return {
        "cases": [
            {**vars(outcome.case), "kills": len(outcome.kills), "epochs": outcome.epochs, "items": outcome.items}
            for outcome in outcomes
        ],
        "kills": len(kills),
        "survived": sum(kill.item is not None or not kill.needed for kill in kills),
        "died when nothing was needed of them": sum(not kill.needed for kill in kills),
        "items compared": sum(outcome.items for outcome in outcomes),
        "not exact": [fault for outcome in outcomes for fault in outcome.faults],
        "SIGSTOP timeout": TIMEOUT_S,
        "kill to detection": _spread(kills, stop=False, of="detected"),
        "kill to next item": _spread(kills, stop=False, of="item"),
        "SIGSTOP to detection": _spread(kills, stop=True, of="detected"),
        "SIGSTOP to next item": _spread(kills, stop=True, of="item"),
        "kill to next item by start method": {
            context: _spread(
                [kill for outcome in outcomes if outcome.case.context == context for kill in outcome.kills],
                stop=False,
                of="item",
            )
            for context in sorted({outcome.case.context for outcome in outcomes})
        },
    }


def _spread(kills: list[Kill], *, stop: bool, of: str) -> dict[str, float]:
    times = [
        getattr(kill, of) - kill.at
        for kill in kills
        if (kill.how == "SIGSTOP") == stop and getattr(kill, of) is not None
    ]
    if not times:
        return {}
    return {"n": len(times), "median": round(statistics.median(times), 4), "max": round(max(times), 4)}


def _cases(kills: int) -> list[Case]:
    """Most of the kills under fork, whose processes start at once."""
    shares = {"fork": 0.76, "forkserver": 0.2, "spawn": 0.04}
    return [
        Case(graph, context, max(1, round(kills * share / len(GRAPHS))))
        for context, share in shares.items()
        for graph in GRAPHS
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=210)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-matrix", action="store_true", help="leave out the cells of the fault matrix")
    args = parser.parse_args()
    outcomes = []
    for case in _cases(args.kills):
        began = time.monotonic()
        outcomes.append(run_case(case, args.seed))
        took = time.monotonic() - began
        print(f"{case}: {len(outcomes[-1].faults)} faults in {took:.0f} s", file=sys.stderr, flush=True)
    figures = report(outcomes)
    inexact = len(figures["not exact"]) + figures["kills"] - figures["survived"]
    if not args.no_matrix:
        figures["matrix"] = matrix = run_matrix()
        inexact += len(matrix["not exact"]) + len(matrix["detected late"])
    print(json.dumps(figures, indent=1))
    return 1 if inexact else 0


if __name__ == "__main__":
    sys.exit(main())
