"""The training process of the demo: it may be killed at any moment, and goes on from its checkpoint when started again.

It writes a JSON line for each step to ``<run>/log.jsonl``: what arrived, the loss, and a digest over all that arrived.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from examples.digits.data import TRAIN_DIGITS
from examples.digits.pipeline import BATCH_SIZE, Batch, digits_graph
from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2

__all__ = ["STEPS_PER_EPOCH", "TrainingJob", "train"]

STEPS_PER_EPOCH = TRAIN_DIGITS // BATCH_SIZE
_WORKERS = 2
_SEED = 2026


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """What a training process is told. It keeps ``log.jsonl`` and ``checkpoint.pt`` in ``run``."""

    data: Path
    run: Path
    device: str
    epochs: int
    checkpoint_every: int = 20


class Journal:
    """Appends JSON lines, which outlive the process. One that a kill cuts off stays on a line of its own."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            os.write(self._file, b"\n")

    def write(self, event: str, **fields: Any) -> None:
        os.write(self._file, (json.dumps({"event": event, **fields}) + "\n").encode())

    def close(self) -> None:
        os.close(self._file)


def train(job: TrainingJob) -> None:
    """Train to the end, from the checkpoint if there is one."""
    journal = Journal(job.run / "log.jsonl")
    device, sync = _device(job.device)
    torch.manual_seed(_SEED)
    model = _model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    service = MultiProcessingReadingService(_WORKERS, device=job.device)
    with DataLoader2(digits_graph(job.data), reading_service=service) as loader:
        loader.seed(_SEED)
        step, digest = 0, ""
        checkpoint = job.run / "checkpoint.pt"
        if checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
            step, digest = saved["step"], saved["digest"]
        journal.write("start", step=step, pid=os.getpid(), plan=loader.explain())
        began, first_step = time.perf_counter(), step
        while step < job.epochs * STEPS_PER_EPOCH:
            stream = iter(loader)
            for batch in stream:
                digest, identities = _digest(digest, batch)
                loss = _step(model, optimizer, batch, sync)
                step += 1
                journal.write(
                    "step",
                    step=step,
                    epoch=stream.epoch,
                    loss=loss,
                    digest=digest,
                    identities=identities,
                    workers=service.worker_pids(),
                    restarts=service.restarts,
                )
                if step % job.checkpoint_every == 0:
                    state = {"loader": loader.state_dict(), "step": step, "digest": digest}
                    _save(checkpoint, state | {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        samples_per_s = (step - first_step) * BATCH_SIZE / (time.perf_counter() - began)
    accuracy = _accuracy(model, job.data, device)
    journal.write("end", step=step, accuracy=accuracy, samples_per_s=samples_per_s, job=_plain(asdict(job)))
    journal.close()


def _device(name: str) -> tuple[torch.device, Any]:
    if name != "xla":
        return torch.device(name), lambda: None
    import torch_xla

    return torch_xla.device(), torch_xla.sync


def _model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 10),
    )


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, sync: Any) -> float:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch["pixels"]), batch["label"])
    loss.backward()
    optimizer.step()
    sync()
    return loss.item()


def _digest(before: str, batch: Batch) -> tuple[str, list[int]]:
    """A digest over everything that arrived so far, read back from the device: identities, labels, augmented pixels."""
    arrived = {name: tensor.cpu() for name, tensor in batch.items()}
    running = hashlib.sha256(before.encode())
    for name in ("identity", "label", "pixels"):
        running.update(arrived[name].numpy().tobytes())
    return running.hexdigest(), arrived["identity"].tolist()


def _save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint that is whole or absent, whenever the process or the machine stops."""
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        torch.save(_plain(state), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def _plain(value: Any) -> Any:
    """The same with tensors on the CPU and paths as text."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _accuracy(model: nn.Module, data: Path, device: torch.device) -> float:
    test = np.load(data / "test.npz")
    pixels = torch.from_numpy(test["pixels"]).unsqueeze(1).float().to(device) / 255
    model.eval()
    with torch.no_grad():
        predicted = model(pixels).argmax(1).cpu()
    return float((predicted == torch.from_numpy(test["labels"])).float().mean())
