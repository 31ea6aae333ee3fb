"""Accelerate, killed in mid-epoch: ``python examples/trainers/with_accelerate.py``. Needs accelerate."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that the script runs from anywhere

import torch
from accelerate import Accelerator
from torch import nn

from examples.trainers.killed import BATCH_SIZE, EPOCHS, Digits, Run, demonstrate
from torchpipe import DataLoader
from torchpipe.integrations.accelerate import prepare


def train(run: Run) -> None:
    generator = torch.Generator().manual_seed(1)
    accelerator = Accelerator(cpu=True)
    loader = prepare(accelerator, DataLoader(Digits(), BATCH_SIZE, shuffle=True, num_workers=2, generator=generator))
    model = nn.Linear(784, 10)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    saved = sorted(run.folder.glob("step-*"))
    if saved:
        accelerator.load_state(saved[-1])
    step = int(saved[-1].name[5:]) if saved else 0
    run.journal.start(step)
    for epoch in range(loader.epoch, EPOCHS):
        for batch in loader:
            run.journal.step(step, epoch, batch)
            accelerator.backward(nn.functional.cross_entropy(model(batch["pixels"]), batch["labels"]))
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 20 == 0:
                accelerator.save_state(run.folder / f"step-{step:03}")
    loader.shutdown()


if __name__ == "__main__":
    sys.exit(demonstrate(train))
