"""What these examples have in common: real digits, a journal of what was trained on, and a run that is killed.

A training is a function of a :class:`Run`. It is carried out twice in processes of its own: once left alone, and once
killed before a step in mid-epoch and started again, to go on from the trainer's own checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from examples.digits.data import read_digits

__all__ = ["BATCH_SIZE", "DIGITS", "EPOCHS", "Batch", "Digits", "Journal", "Run", "demonstrate", "digits", "lineage"]

DIGITS = 5_000
BATCH_SIZE = 100
EPOCHS = 2
_KILL_AT = 73  # of 100 steps
Batch = dict[str, torch.Tensor]


@cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """float32 pixels [5000, 784] in 0..1 and int64 labels [5000]."""
    pixels, labels = read_digits()
    return torch.from_numpy(pixels).flatten(1).float() / 255, torch.from_numpy(labels)


class Digits(Dataset[dict[str, Any]]):
    """Real digits with random noise, which an exact resume must give again."""

    def __len__(self) -> int:
        return DIGITS

    def __getitem__(self, index: int) -> dict[str, Any]:
        pixels, labels = digits()
        return {"identity": index, "pixels": pixels[index] + 0.1 * torch.rand(784), "labels": labels[index]}


class Journal:
    """Appends a line for every batch that is trained on, and kills its process before a step if asked to."""

    def __init__(self, path: Path, kill_at: int | None = None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._kill_at = kill_at

    def start(self, step: int) -> None:
        """A process begins, after ``step`` steps of the run that it goes on with."""
        self._write({"start": step})

    def step(self, step: int, epoch: int, batch: Batch) -> None:
        """Before ``batch`` is trained on: it is to be step number ``step`` (from 0) of the run."""
        if step == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        digest = hashlib.blake2b(batch["pixels"].detach().contiguous().numpy().tobytes(), digest_size=8).hexdigest()
        self._write({"step": step, "epoch": epoch, "ids": batch["identity"].tolist(), "digest": digest})

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, (json.dumps(line) + "\n").encode())


def lineage(path: Path) -> list[dict[str, Any]]:
    """The steps of a run: what a restart has taken back is left out. Raises: ValueError if there is a gap."""
    steps: list[dict[str, Any]] = []
    for line in path.read_text().splitlines():
        event = json.loads(line)
        at = event.get("start", event.get("step"))
        if at > len(steps) or ("step" in event and at < len(steps)):
            raise ValueError(f"{path}: step {at} follows after {len(steps)} steps")
        if "start" in event:
            del steps[at:]
        else:
            steps.append(event)
    return steps


@dataclass(frozen=True, kw_only=True)
class Run:
    """Where a training keeps its checkpoints, and its journal."""

    folder: Path
    journal: Journal


def demonstrate(train: Callable[[Run], None]) -> int:
    """Both runs, and what came of them as text. Returns 0 if the killed one was exact."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp())
    try:
        digits()
        _in_child(train, folder / "alone", None)
        _in_child(train, folder / "killed", _KILL_AT)
        print(f"SIGKILL before step {_KILL_AT} of {EPOCHS * DIGITS // BATCH_SIZE}; started again from its checkpoint")
        _in_child(train, folder / "killed", None)
        wanted, got = (lineage(folder / name / "journal") for name in ("alone", "killed"))
    finally:
        shutil.rmtree(folder)
    samples = Counter((step["epoch"], number) for step in got for number in step["ids"])
    expected = Counter((epoch, number) for epoch in range(EPOCHS) for number in range(DIGITS))
    lost, repeated = ((one - other).total() for one, other in ((expected, samples), (samples, expected)))
    print(f"{samples.total()} samples in {EPOCHS} epochs: {lost} lost, {repeated} repeated")
    print(f"order and augmented pixels of all {len(got)} steps: {'the same' if got == wanted else 'NOT THE SAME'}")
    print(f"took {time.monotonic() - began:.0f} s")
    return int(bool(lost or repeated or got != wanted))


def _in_child(train: Callable[[Run], None], folder: Path, kill_at: int | None) -> None:
    """In a process of its own, forked from this one: importing a trainer takes longer than these trainings."""
    folder.mkdir(exist_ok=True)
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            torch.set_num_threads(1)
            train(Run(folder=folder, journal=Journal(folder / "journal", kill_at)))
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != (0 if kill_at is None else -signal.SIGKILL):
        raise SystemExit(f"the training ended with exit code {code}")
