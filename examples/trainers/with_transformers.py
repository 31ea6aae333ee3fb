"""Hugging Face's Trainer, killed: ``python examples/trainers/with_transformers.py``. Needs transformers, accelerate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that the script runs from anywhere

import torch
from torch import nn
from transformers import TrainerCallback, TrainingArguments

from examples.trainers.killed import BATCH_SIZE, EPOCHS, Digits, Run, demonstrate
from torchpipe import DataLoader
from torchpipe.integrations.transformers import ExactTrainer


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(784, 10)

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.cross_entropy(self.layer(pixels), labels)}


def train(run: Run) -> None:
    class Recorded(ExactTrainer):
        def training_step(self, model: nn.Module, inputs: dict[str, torch.Tensor], *args: Any) -> torch.Tensor:
            run.journal.step(self.state.global_step, int(self.state.epoch), inputs)
            return super().training_step(model, inputs, *args)

    class Start(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            run.journal.start(state.global_step)

    options = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_strategy": "no", "learning_rate": 0.1}
    args = TrainingArguments(str(run.folder), num_train_epochs=EPOCHS, save_steps=20, **options)
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(Digits(), BATCH_SIZE, shuffle=True, num_workers=2, generator=generator)
    trainer = Recorded(Classifier(), args, train_loader=loader, callbacks=[Start()])
    trainer.train(resume_from_checkpoint=any(run.folder.glob("checkpoint-*")))
    loader.shutdown()


if __name__ == "__main__":
    sys.exit(demonstrate(train))
