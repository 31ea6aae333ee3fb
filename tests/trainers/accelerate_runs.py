"""What the processes of test_accelerate.py do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from examples.trainers.killed import BATCH_SIZE, DIGITS, Digits, Journal, digits
from tests.trainers import runs
from torchpipe import DataLoader
from torchpipe.integrations.accelerate import prepare

digits()


def train(
    folder: str,
    ranks: int,
    kind: str,
    epochs: int,
    kill_at: int | None = None,
    accumulate: int = 1,
    name_epochs: bool = False,
    raw: bool = False,
    after: bool = True,
) -> None:
    """Checkpoints every 20 steps, and after each epoch. Every process has other seeds."""
    rank, place = int(os.environ.get("RANK", "0")), Path(folder)
    torch.set_num_threads(1)
    newest = max(place.glob("state-*"), key=lambda path: path.stat().st_mtime_ns, default=None)
    set_seed(3 if newest is None else os.getppid())
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    if raw:
        loader: Any = accelerator.prepare(runs.loader_of(kind, rank, ranks))
        accelerator.register_for_checkpointing(loader)
    else:
        loader = prepare(accelerator, lambda: runs.loader_of(kind, rank, ranks))
    model = runs.model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    step = 0
    if newest is not None:
        accelerator.load_state(newest)
        step = int(newest.name.split("-")[2])
    journal = Journal(place / f"journal.{rank}", kill_at)
    journal.start(step)
    for epoch in range(loader.epoch, epochs):
        if name_epochs:
            loader.set_epoch(epoch)
        for batch in loader:
            journal.step(step, epoch, batch)
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(batch["pixels"]), batch["labels"])
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            if step % 20 == 0:
                accelerator.save_state(place / f"state-step-{step}")
        if after:
            accelerator.save_state(place / f"state-epoch-{step}")
    loader.shutdown()
    accelerator.end_training()


def behaves_as_accelerates_own(folder: str, ranks: int) -> None:
    """Gradients are synchronised in the same steps, after the last batch too; and where batches go."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    theirs = accelerator.prepare(TorchDataLoader(Digits(), BATCH_SIZE))
    kinds = [prepare(accelerator, runs.loader_of(kind, 0, 1)) for kind in ("map", "graph", "unsized")]
    pattern = []
    for loader in (theirs, *kinds):
        syncs = []
        for _ in loader:
            with accelerator.accumulate(nn.Linear(1, 1)):
                syncs.append(accelerator.sync_gradients)
        assert not accelerator.gradient_state.in_dataloader
        pattern.append(syncs)
    assert sum(pattern[0]) == 13  # 50 batches, 4 by 4, and what is left
    assert pattern[1:] == pattern[:1] * 3
    accelerator.state.device = torch.device("meta")
    plain = DataLoader(Digits(), BATCH_SIZE)
    for placed, wanted in ((None, True), (True, True), (False, False)):
        batch = next(iter(prepare(accelerator, plain, device_placement=placed)))
        assert batch["pixels"].is_meta is wanted


class Said(IterableDataset[int]):
    """Five records, whatever its length says."""

    def __init__(self, said: int) -> None:
        self.said = said

    def __len__(self) -> int:
        return self.said

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def lengths_are_estimates(folder: str, ranks: int) -> None:
    """Gradients are synchronised after the last batch that comes, and not after the one that a length says."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    for said in (5, 8, 3):
        syncs = []
        for _ in prepare(accelerator, DataLoader(Said(said))):
            with accelerator.accumulate(nn.Linear(1, 1)):
                syncs.append(accelerator.sync_gradients)
        assert syncs == [False, True, False, True, True], said
    for said, word in ((8, "fewer"), (3, "more")):
        with pytest.raises(RuntimeError, match=f"{word} batches than"):
            list(prepare(accelerator, DataLoader(range(5), batch_sampler=Batches(said))))


class Batches:
    def __init__(self, said: int) -> None:
        self.said = said

    def __len__(self) -> int:
        return self.said

    def __iter__(self) -> Iterator[list[int]]:
        return ([number] for number in range(5))


def misuse(folder: str, ranks: int) -> None:
    accelerator = Accelerator(cpu=True)
    loader = prepare(accelerator, runs.loader_of("map", 0, 1))
    assert accelerator.prepare(loader) is loader
    stream = iter(loader)
    next(stream)
    with pytest.raises(AttributeError, match="skip no batches"):
        skip_first_batches(loader, 1)
    with pytest.raises(TypeError, match=r"a torchpipe.DataLoader, a DataLoader2 or a function"):
        prepare(accelerator, TorchDataLoader(Digits()))
    del stream
    counted: list[Any] = []
    for epoch in (0, 1):  # a loop that is left in mid-epoch is over, as with any loader
        for batch in loader:
            counted.append((loader.epoch, epoch, len(batch["identity"])))
            break
    assert counted == [(2, 0, BATCH_SIZE), (3, 1, BATCH_SIZE)]
    assert loader.state_dict()["epoch"] == 2  # of which the rest is left
    loader.set_epoch(loader.epoch)
    state = loader.state_dict()
    assert state["epoch"] == 3
    loader.load_state_dict(state)
    assert sum(len(batch["identity"]) for batch in loader) == DIGITS
