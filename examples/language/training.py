"""The training process: it may be killed at any moment, and goes on from its checkpoint when it is started again.

It writes a JSON line for each step to ``<run>/log.jsonl``.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

import torch

from examples.jobs import entries, write
from examples.language.model import LanguageModel, next_byte_loss
from examples.language.pipeline import PROSE, language_graph
from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2

__all__ = ["Curve", "read_curve", "train"]

_SEED = 2026


def train(run: Path, steps: int, checkpoint_every: int) -> None:
    """Train up to ``steps``, from the checkpoint in ``run`` if there is one."""
    torch.set_num_threads(1)  # sums are the same then, whatever else the machine does
    torch.manual_seed(_SEED)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    checkpoint = run / "checkpoint.pt"
    with DataLoader2(language_graph(), reading_service=MultiProcessingReadingService(num_workers=2)) as loader:
        loader.seed(_SEED)
        done = 0
        if checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
            done = saved["step"]
        with open(run / "log.jsonl", "a") as log:
            write(log, start=done)
            for step, batch in zip(range(done + 1, steps + 1), loader):
                loss = next_byte_loss(model, batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                write(log, step=step, loss=loss.item(), digest=_digest(batch), prose=_share_of_prose(batch))
                if step % checkpoint_every == 0:
                    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save(state | {"loader": loader.state_dict()}, f"{checkpoint}.part")
                    os.replace(f"{checkpoint}.part", checkpoint)


def _digest(batch: dict[str, torch.Tensor]) -> str:
    """Of every byte that arrived."""
    return hashlib.sha256(b"".join(batch[name].numpy().tobytes() for name in sorted(batch))).hexdigest()[:16]


def _share_of_prose(batch: dict[str, torch.Tensor]) -> float:
    return (batch["source"] == PROSE).float().mean().item()


@dataclass
class Curve:
    """What a log says: where the process was started, and each step; one that was made twice, as it was each time."""

    starts: list[int] = field(default_factory=list)
    steps: dict[int, list[tuple[float, str]]] = field(default_factory=dict)
    prose: list[float] = field(default_factory=list)

    @property
    def last(self) -> int:
        return max(self.steps, default=0)


def read_curve(run: Path) -> Curve:
    curve = Curve()
    for entry in entries(run / "log.jsonl"):
        if "start" in entry:
            curve.starts.append(entry["start"])
        else:
            curve.steps.setdefault(entry["step"], []).append((entry["loss"], entry["digest"]))
            curve.prose.append(entry["prose"])
    return curve
