"""A loop of one's own with torch.distributed.checkpoint, killed: ``python examples/trainers/with_dcp.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that the script runs from anywhere

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from examples.trainers.killed import BATCH_SIZE, EPOCHS, Digits, Run, demonstrate
from torchpipe import DataLoader
from torchpipe.integrations.dcp import SavedLoader


def train(run: Run) -> None:
    generator = torch.Generator().manual_seed(1)
    data = SavedLoader(DataLoader(Digits(), BATCH_SIZE, shuffle=True, num_workers=2, generator=generator))
    model, step = nn.Linear(784, 10), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saved = sorted(run.folder.glob("step-*/.metadata"))
    if saved:
        state = {"model": get_model_state_dict(model), "data": data, "step": step}
        dcp.load(state, checkpoint_id=saved[-1].parent)
        set_model_state_dict(model, state["model"])
        step = state["step"]
    run.journal.start(step)
    for epoch in range(data.epoch, EPOCHS):
        for batch in data:
            run.journal.step(step, epoch, batch)
            nn.functional.cross_entropy(model(batch["pixels"]), batch["labels"]).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 20 == 0:
                state = {"model": get_model_state_dict(model), "data": data, "step": step}
                dcp.save(state, checkpoint_id=run.folder / f"step-{step:03}")
    data.shutdown()


if __name__ == "__main__":
    sys.exit(demonstrate(train))
