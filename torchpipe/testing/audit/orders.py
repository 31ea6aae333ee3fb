"""The order for one run, and the records of that run. Plain data between the two processes."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torchpipe.testing.audit.samples import Sample

__all__ = ["Batch", "Order", "RunResult"]

Batch = list[Sample]


@dataclass(frozen=True, kw_only=True)
class Order:
    """One run: from ``epoch`` (its rest, if ``load`` names a state) to ``epochs``, or to the end that is asked for.

    ``stop``: ``break`` behind so many batches, save to ``save``, and end, as a script ends or by SIGKILL (``by_kill``).
    ``save_ends``: two files, for states behind the last of ``ends`` batches, and behind the end of that epoch's loop.
    ``kill``: numbers of batches behind which a worker gets SIGKILL. ``limit``: no more batches than these. Files are
    absolute paths. ``probe``: no run; the user's objects are asked for one thing twice.
    """

    target: str
    records: str
    log: str
    identify: str | None = None
    arguments: dict[str, int | None] = field(default_factory=dict)
    epoch: int = 0
    epochs: int = 1
    load: str | None = None
    at_end: bool = False
    stop: int | None = None
    save: str | None = None
    by_kill: bool = False
    ends: int | None = None
    save_ends: tuple[str, str] | None = None
    kill: tuple[int, ...] = ()
    limit: int = 10_000
    strict: bool = False
    probe: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Order:
        return cls(**json.loads(text))


@dataclass
class RunResult:
    """The result of a run: ``epochs`` has its batches; ``error`` is (type, text, traceback).

    ``finished`` says how it came to the end that was asked for: by ``end``, ``stop`` (which saves) or ``limit``; empty
    if it did not. ``crashed``: its exit code is another than it should be.
    """

    epochs: dict[int, list[Batch]] = field(default_factory=lambda: defaultdict(list))
    made: dict[str, Any] = field(default_factory=dict)
    has_state: bool = False
    finished: str = ""
    killed: int = 0
    error: tuple[str, str, str] | None = None
    warnings: list[str] = field(default_factory=list)
    probed: str = ""
    hung_s: float = 0.0
    left: int = 0
    code: int = 0
    crashed: bool = False
    log: str = ""

    @property
    def failed(self) -> bool:
        """True if it came to no end, or to a bad one."""
        return bool(self.hung_s) or self.error is not None or self.crashed or not self.finished

    @property
    def count(self) -> int:
        return sum(map(len, self.epochs.values()))

    def read(self, records: Path) -> None:
        """Take in what the run wrote, as far as it got."""
        text = records.read_bytes().decode(errors="replace") if records.exists() else ""
        for line in text.splitlines(keepends=True):
            if line.endswith("\n"):  # the last one may be cut off by a SIGKILL
                self._take(*json.loads(line))

    def _take(self, what: str, value: Any) -> None:
        if what == "batch":
            epoch, samples = value
            self.epochs[epoch].append([Sample(one, fields) for one, fields in samples])
        elif what == "epoch":
            self.epochs[value] = self.epochs[value]
        elif what == "killed":
            self.killed += 1
        elif what == "error":
            self.error = tuple(value)
        else:
            setattr(self, what, value)
