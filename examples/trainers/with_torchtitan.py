"""A data loader as torchtitan builds and saves it, killed: ``python examples/trainers/with_torchtitan.py``.

Needs torchtitan and triton. Its whole Trainer wants an accelerator: this loop has its CheckpointManager alone.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that the script runs from anywhere

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import default_collate
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw

from examples.trainers.killed import BATCH_SIZE, DIGITS, EPOCHS, Digits, Run, demonstrate
from torchpipe import DataLoader
from torchpipe.integrations.torchtitan import ExactDataLoader

try:
    from torchtitan.components.checkpointer import CheckpointManager
except ImportError:  # torchtitan 0.3
    from torchtitan.components.checkpoint import CheckpointManager


def as_titan_wants_them(samples: list[dict[str, Any]]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    batch = default_collate(samples)
    return {"input": batch["pixels"], "identity": batch["identity"]}, batch["labels"]


class DigitsLoader(ExactDataLoader):
    @dataclass(kw_only=True, slots=True)
    class Config(ExactDataLoader.Config):
        workers: int = 2

    def make(self, *, dp_world_size: int, dp_rank: int, local_batch_size: int, **_: Any) -> DataLoader[Any]:
        generator, workers = torch.Generator().manual_seed(1), self.config.workers
        return DataLoader(
            Digits(), local_batch_size, True, None, None, workers, as_titan_wants_them, generator=generator
        )


class Progress:
    step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


def train(run: Run) -> None:
    dist.init_process_group("gloo", init_method=f"file://{run.folder}/{os.getpid()}", rank=0, world_size=1)
    given = {"tokenizer": None, "seq_len": 784, "local_batch_size": BATCH_SIZE}
    loader = DigitsLoader.Config(epochs=EPOCHS).build(dp_world_size=1, dp_rank=0, **given)
    model, progress = nn.Linear(784, 10), Progress()
    optimizers = default_adamw(lr=0.01).build(model_parts=[model])
    checkpointer = CheckpointManager.Config(enable=True, interval=20).build(
        dataloader=loader,
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=LRSchedulersContainer.Config().build(optimizers=optimizers, training_steps=200),
        states={"train_state": progress},
        sd_adapter=None,
        base_folder=str(run.folder),
    )
    checkpointer.load(step=-1)
    run.journal.start(progress.step)
    for inputs, labels in loader:
        batch = {"pixels": inputs["input"], "identity": inputs["identity"]}
        run.journal.step(progress.step, progress.step // (DIGITS // BATCH_SIZE), batch)
        nn.functional.cross_entropy(model(inputs["input"]), labels).backward()
        optimizers.step()
        optimizers.zero_grad()
        progress.step += 1
        checkpointer.save(progress.step)
    checkpointer.close()
    loader.close()


if __name__ == "__main__":
    sys.exit(demonstrate(train))
