"""The training process: it may be killed at any moment, and goes on from its checkpoint when it is started again.

It writes a JSON line for each step to ``<run>/log.jsonl``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from examples.table.data import NUMBERS, WORDS, test_batches, train_graph
from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2

__all__ = ["Journal", "read_journal", "train"]

Batch = dict[str, torch.Tensor]
_SEED = 2026


class TableModel(nn.Module):
    """Embeds the categories beside the numbers, and answers with a logit for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(len(WORDS), 8)
        self.character = nn.Embedding(128, 8)
        self.layers = nn.Sequential(nn.Linear(len(NUMBERS) + 16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.answer = nn.Linear(64, 1)

    def forward(self, batch: Batch) -> torch.Tensor:
        numbers = torch.stack([batch[name].float() for name in NUMBERS], dim=1)
        numbers = numbers.sign() * numbers.abs().log1p()
        parts = [numbers, self.word(batch["first_word"]), self.character(batch["last_character"])]
        logits: torch.Tensor = self.answer(self.layers(torch.cat(parts, dim=1))).squeeze(1)
        return logits


def train(table: Path, run: Path, epochs: int, checkpoint_every: int) -> None:
    """Train up to ``epochs``, from the checkpoint in ``run`` if there is one; then measure on other files."""
    torch.set_num_threads(1)  # sums are the same then, whatever else the machine does
    torch.manual_seed(_SEED)
    model = TableModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    checkpoint, step = run / "checkpoint.pt", 0
    with DataLoader2(train_graph(table), reading_service=MultiProcessingReadingService(num_workers=2)) as loader:
        loader.seed(_SEED)
        if checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
            step = saved["step"]
        with open(run / "log.jsonl", "a") as log:
            _write(log, start=step)
            while loader.epoch < epochs:
                batches = iter(loader)
                if batches.epoch >= epochs:  # the state was that of the very last batch
                    break
                for batch in batches:
                    step += 1
                    loss = nn.functional.binary_cross_entropy_with_logits(model(batch), batch["deeper"].float())
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    _write(log, step=step, epoch=batches.epoch, loss=loss.item(), ids=batch["id"].tolist())
                    if step % checkpoint_every == 0:
                        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                        torch.save(state | {"loader": loader.state_dict()}, f"{checkpoint}.part")
                        os.replace(f"{checkpoint}.part", checkpoint)
            _write(log, accuracy=_accuracy(model, table))


@torch.no_grad()
def _accuracy(model: TableModel, table: Path) -> float:
    right = [(model(batch) > 0) == batch["deeper"] for batch in test_batches(table)]
    return torch.cat(right).float().mean().item()


def _write(log: Any, **fields: Any) -> None:
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
    for entry in _entries(run / "log.jsonl"):
        if "start" in entry:
            journal.starts.append(entry["start"])
        elif "accuracy" in entry:
            journal.accuracy = entry["accuracy"]
        else:
            journal.steps.setdefault(entry["step"], []).append((entry["epoch"], entry["loss"], entry["ids"]))
    return journal


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:  # empty, or cut off by a kill
            continue
        yield entry
