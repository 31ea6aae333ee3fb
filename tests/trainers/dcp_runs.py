"""What the processes of test_dcp.py do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from examples.trainers.killed import Journal, digits
from tests.trainers import runs
from torchpipe.integrations.dcp import SavedLoader

digits()


class Training:
    """Model, optimizer, loader and step under one name each, as DCP saves and loads them."""

    def __init__(self, kind: str, rank: int, ranks: int) -> None:
        self.model: Any = runs.model()
        if ranks > 1:
            self.model = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.data: SavedLoader[Any] = SavedLoader(runs.loader_of(kind, rank, ranks))
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]

    def saved(self) -> dict[str, Any]:
        return {"training": self, "data": self.data}


def train(
    folder: str, ranks: int, kind: str, epochs: int, kill_at: int | None = None, use: str = "save", every: int = 20
) -> None:
    """Checkpoints every so many steps, and after each epoch. Every process has other seeds.

    ``use``: ``save``, ``async_save``, ``early``: the state is loaded when batches have been read, or ``within``:
    none is saved after an epoch, so that one from its last batch may not know that this was the last.
    """
    rank, place = int(os.environ.get("RANK", "0")), Path(folder)
    torch.set_num_threads(1)
    if ranks > 1 or use == "async_save" or kind in ("dealt", "shards"):
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", str(20_000 + os.getpid() % 20_000))
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
        beside = dist.new_group()  # for what saves while the training talks through the other one
    written = sorted(place.glob("*/.metadata"), key=lambda path: path.stat().st_mtime_ns)
    torch.manual_seed(os.getpid() if written else 3)
    training = Training(kind, rank, ranks)
    if written:
        if use == "early":
            stream = iter(training.data)
            for _ in range(3):
                next(stream)
        dcp.load(training.saved(), checkpoint_id=written[-1].parent)
    journal = Journal(place / f"journal.{rank}", kill_at)
    journal.start(training.step)
    pending: Any = None

    def save(name: str) -> None:
        nonlocal pending
        if use != "async_save":
            dcp.save(training.saved(), checkpoint_id=place / name)
            return
        if pending is not None:
            pending.result()
        pending = dcp.async_save(training.saved(), checkpoint_id=place / name, process_group=beside)

    for epoch in range(training.data.epoch, epochs):
        for batch in training.data:
            if pending is not None and training.step == kill_at:
                pending.result()
            journal.step(training.step, epoch, batch)
            nn.functional.cross_entropy(training.model(batch["pixels"]), batch["labels"]).backward()
            training.optimizer.step()
            training.optimizer.zero_grad()
            training.step += 1
            if training.step % every == 0:
                save(f"step-{training.step}")
        if use != "within":
            save(f"epoch-{epoch}")
    if pending is not None:
        pending.result()
    training.data.shutdown()
    if dist.is_initialized():
        dist.destroy_process_group()
