"""What is trained on the table, in a process that may be killed at any moment."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from examples import jobs
from examples.table.data import NUMBERS, WORDS, test_batches, train_graph
from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2

__all__ = ["train"]

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

    def loss_of(batch: Batch) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(model(batch), batch["deeper"].float())

    @torch.no_grad()
    def accuracy() -> float:
        right = [(model(batch) > 0) == batch["deeper"] for batch in test_batches(table)]
        return torch.cat(right).float().mean().item()

    with DataLoader2(train_graph(table), reading_service=MultiProcessingReadingService(num_workers=2)) as loader:
        loader.seed(_SEED)
        jobs.train(run, loader, model, loss_of, accuracy, epochs=epochs, checkpoint_every=checkpoint_every)
