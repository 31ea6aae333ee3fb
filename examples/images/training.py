"""What is trained on the images, in a process that may be killed at any moment."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from examples import jobs
from examples.images.data import test_images, train_graph
from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2

__all__ = ["train"]

_SEED = 2026


def train(shards: str, run: Path, epochs: int, checkpoint_every: int) -> None:
    """Train up to ``epochs``, from the checkpoint in ``run`` if there is one; then measure on other images."""
    torch.set_num_threads(1)  # sums are the same then, whatever else the machine does
    torch.manual_seed(_SEED)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(400, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )

    def loss_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch["image"]), batch["label"])

    @torch.no_grad()
    def accuracy() -> float:
        images, labels = test_images()
        return (model(images).argmax(dim=1) == labels).float().mean().item()

    with DataLoader2(train_graph(shards), reading_service=MultiProcessingReadingService(num_workers=2)) as loader:
        loader.seed(_SEED)
        jobs.train(run, loader, model, loss_of, accuracy, epochs=epochs, checkpoint_every=checkpoint_every)
