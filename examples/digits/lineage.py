"""What a run really received, from its log, and how two runs compare."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Comparison", "Kills", "Run", "compare", "read_run"]


@dataclass
class Run:
    """One run, of one or several processes. ``steps`` is its lineage; what a restart took back is in ``undone``."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    undone: list[dict[str, Any]] = field(default_factory=list)
    starts: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None

    @property
    def restarts_seen_at(self) -> list[int]:
        """The steps after which a worker had been replaced, as the training process saw it."""
        seen, steps = 0, []
        for step in sorted(self.steps + self.undone, key=lambda item: item["step"]):
            if step["restarts"] > seen:
                steps.append(step["step"])
            seen = step["restarts"]
        return steps


def read_run(log: Path) -> Run:
    """Read the log so far; lines that are being written, or that their process died over, are left out."""
    run = Run()
    if not log.exists():
        return run
    for line in log.read_text().split("\n")[:-1]:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # cut off by a kill: its step is behind the last checkpoint, or a gap that compare() would count
        match event["event"]:
            case "start":
                run.starts.append(event)
                run.undone += run.steps[event["step"] :]
                del run.steps[event["step"] :]
            case "step":
                run.steps.append(event)
            case "end":
                run.end = event
    return run


@dataclass(frozen=True, kw_only=True)
class Kills:
    """The steps after which a worker, and later the training process, was killed."""

    worker_at: int
    process_at: int


@dataclass(frozen=True)
class Comparison:
    """An interrupted run against an uninterrupted one. Counts are of samples, over all epochs."""

    samples: int
    once_each: bool  # every digit of the training set just once in each epoch, whatever the reference did
    lost: int
    repeated: int
    same_order: bool
    same_digest: bool
    same_losses: bool

    @property
    def exact(self) -> bool:
        return self.once_each and not self.lost and not self.repeated and self.same_order and self.same_digest

    def __str__(self) -> str:
        order = "same order" if self.same_order else "ANOTHER ORDER"
        return f"{self.lost} lost, {self.repeated} repeated, {order}"


def compare(interrupted: Run, reference: Run, identities: Iterable[int]) -> Comparison:
    """Compare by what arrived: each sample's identity, in each epoch, and the digest over its augmented pixels.

    ``identities`` are those of the training set.
    """
    expected, got = _samples(reference), _samples(interrupted)
    wanted, counted = Counter(expected), Counter(got)
    return Comparison(
        samples=len(got),
        once_each=_once_each(got, identities),
        lost=sum((wanted - counted).values()),
        repeated=sum((counted - wanted).values()),
        same_order=got == expected,
        same_digest=[step["digest"] for step in interrupted.steps] == [step["digest"] for step in reference.steps],
        same_losses=[step["loss"] for step in interrupted.steps] == [step["loss"] for step in reference.steps],
    )


def _once_each(samples: list[tuple[int, int]], identities: Iterable[int]) -> bool:
    epochs = {epoch for epoch, _ in samples}
    return Counter(samples) == Counter((epoch, identity) for epoch in epochs for identity in identities)


def _samples(run: Run) -> list[tuple[int, int]]:
    return [(step["epoch"], identity) for step in run.steps for identity in step["identities"]]
