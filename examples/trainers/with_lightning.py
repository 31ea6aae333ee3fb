"""Lightning's Trainer, killed in mid-epoch: ``python examples/trainers/with_lightning.py``. Needs pytorch-lightning."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that the script runs from anywhere

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn

from examples.trainers.killed import BATCH_SIZE, EPOCHS, Batch, Digits, Journal, Run, demonstrate
from torchpipe import DataLoader
from torchpipe.integrations.lightning import ExactResume


class Classifier(LightningModule):
    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self.layer = nn.Linear(784, 10)
        self.journal = journal

    def on_train_start(self) -> None:
        self.journal.start(self.global_step)

    def training_step(self, batch: Batch, index: int) -> torch.Tensor:
        self.journal.step(self.global_step, self.current_epoch, batch)
        return nn.functional.cross_entropy(self.layer(batch["pixels"]), batch["labels"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(run: Run) -> None:
    generator = torch.Generator().manual_seed(1)
    resume = ExactResume(DataLoader(Digits(), BATCH_SIZE, shuffle=True, num_workers=2, generator=generator))
    trainer = Trainer(
        max_epochs=EPOCHS,
        callbacks=[resume, ModelCheckpoint(run.folder, every_n_train_steps=20, save_last=True)],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(run.journal), resume.loader, ckpt_path="last")


if __name__ == "__main__":
    sys.exit(demonstrate(train))
