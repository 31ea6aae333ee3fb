"""A training job that may be killed at any moment, and the comparison of one that was killed with one that was not.

The training process writes a JSON line for each step to ``<run>/log.jsonl``, and goes on from ``<run>/checkpoint.pt``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from torchpipe import DataLoader2

__all__ = ["Journal", "Training", "compare", "entries", "read_journal", "start_anew", "train", "write"]

_PATIENCE_S = 240.0

J = TypeVar("J")


def train(
    run: Path,
    loader: DataLoader2[dict[str, torch.Tensor]],
    model: nn.Module,
    loss_of: Callable[[dict[str, torch.Tensor]], torch.Tensor],
    accuracy: Callable[[], float],
    *,
    epochs: int,
    checkpoint_every: int,
) -> None:
    """Train up to ``epochs``, from the checkpoint in ``run`` if there is one; then note the accuracy.

    Batches are dicts of tensors, ``id`` among them.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    checkpoint, step = run / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    with open(run / "log.jsonl", "a") as log:
        write(log, start=step)
        while loader.epoch < epochs:
            batches = iter(loader)
            if batches.epoch >= epochs:  # the state was that of the very last batch
                break
            for batch in batches:
                step += 1
                loss = loss_of(batch)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                write(log, step=step, epoch=batches.epoch, loss=loss.item(), ids=batch["id"].tolist())
                if step % checkpoint_every == 0:
                    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save(state | {"loader": loader.state_dict()}, f"{checkpoint}.part")
                    os.replace(f"{checkpoint}.part", checkpoint)
        write(log, accuracy=accuracy())


def write(log: Any, **fields: Any) -> None:
    """A line of the log, whole on the disk before the next step."""
    log.write(f"\n{json.dumps(fields)}\n")  # on a line of its own, also behind one that a kill has cut off
    log.flush()


@dataclass
class Journal:
    """What a log says: where the process was started, and each step; one that was made twice, as it was each time."""

    starts: list[int] = field(default_factory=list)
    steps: dict[int, list[tuple[int, float, list[int]]]] = field(default_factory=dict)  # (epoch, loss, ids)
    accuracy: float | None = None

    @property
    def last(self) -> int:
        return max(self.steps, default=0)


def read_journal(run: Path) -> Journal:
    journal = Journal()
    for entry in entries(run / "log.jsonl"):
        if "start" in entry:
            journal.starts.append(entry["start"])
        elif "accuracy" in entry:
            journal.accuracy = entry["accuracy"]
        else:
            journal.steps.setdefault(entry["step"], []).append((entry["epoch"], entry["loss"], entry["ids"]))
    return journal


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log, without what a kill has cut off."""
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:  # empty, or cut off by a kill
            continue
        yield entry


class Training(Generic[J]):
    """A training process, seen from outside; ``read`` reads the log in its folder."""

    def __init__(self, command: Sequence[str], run: Path, read: Callable[[Path], J]) -> None:
        self._run = run
        self._read = read
        with open(run / "output.txt", "ab") as output:
            self._process = subprocess.Popen([sys.executable, *command], stdout=output, stderr=output)
        self.pid = self._process.pid

    def until(self, condition: Callable[[J], bool]) -> None:
        """Wait until the log says so. Raises: RuntimeError if the process ends before, or it takes very long."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition(self._read(self._run)):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the training has ended or hangs:\n{(self._run / 'output.txt').read_text()}")
            time.sleep(0.02)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self) -> None:
        if self._process.wait(_PATIENCE_S):
            raise RuntimeError(f"the training has failed:\n{(self._run / 'output.txt').read_text()}")


def start_anew(data: Path) -> dict[str, Path]:
    """Empty folders for the run that is left alone and the one that is killed, by name."""
    runs = {name: data / name for name in ("uninterrupted", "interrupted")}
    for run in runs.values():
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir(parents=True)
    return runs


def compare(
    command: Callable[[Path], Sequence[str]], data: Path, items: int, what: str, *, epochs: int, learned: float
) -> int:
    """Run a training job (``command`` of its folder) twice, kill one in its second epoch, start it again, and say what
    came of it. Returns 0 if each of ``items`` ``what`` was there once in each epoch, all was equal, and the accuracy is
    ``learned`` at least.
    """
    began = time.monotonic()
    runs = start_anew(data)
    alone, killed = (Training(command(run), run, read_journal) for run in runs.values())
    killed.until(lambda journal: journal.steps.get(journal.last, [(0, 0.0, [])])[0][0] == 1)
    killed.kill()
    print(f"SIGKILL to the training process {killed.pid} after step {read_journal(runs['interrupted']).last}")
    again = Training(command(runs["interrupted"]), runs["interrupted"], read_journal)
    for training in (again, alone):
        training.wait()
    one, other = map(read_journal, runs.values())
    exact = _report(one, other, items, what, epochs)
    print(f"accuracy on others: {one.accuracy:.3f}, interrupted {other.accuracy:.3f}")
    print(f"{time.monotonic() - began:.0f} s in all")
    return 0 if exact and one.accuracy == other.accuracy and (one.accuracy or 0) >= learned else 1


def _report(alone: Journal, killed: Journal, items: int, what: str, epochs: int) -> bool:
    print(f"started again from its checkpoint of step {killed.starts[-1]}, in mid-epoch")
    seen: Counter[tuple[int, int]] = Counter()
    for made in killed.steps.values():
        epoch, _, ids = made[-1]
        seen.update((epoch, number) for number in ids)
    lost, repeated = items * epochs - len(seen), seen.total() - len(seen)
    print(f"{items} {what} in each of {epochs} epochs: {lost} lost, {repeated} repeated")
    same = all(step in killed.steps and made[0] in killed.steps[step] for step, made in alone.steps.items())
    same = same and all(one == made[0] for made in killed.steps.values() for one in made)
    same = same and len(alone.steps) == len(killed.steps)
    print(f"{what} and losses of all {len(alone.steps)} steps: {'equal, bit for bit' if same else 'DIFFERENT'}")
    return same and not lost and not repeated and len(killed.starts) == 2
