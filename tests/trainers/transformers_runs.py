"""What the processes of test_transformers.py do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

from examples.trainers.killed import DIGITS, Digits, Journal, digits
from tests.trainers import runs
from torchpipe.errors import StateError, StateMismatchError
from torchpipe.integrations.transformers import ExactResume, ExactTrainer

digits()


class Model(nn.Module):
    """Keeps a journal as it is trained, the steps of the optimizer included."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = runs.model()

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor, identity: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(pixels)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Recording(ExactTrainer):
    journal: Journal
    batches = 0  # of the whole run
    accumulate = 1

    def training_step(self, model: Any, inputs: Any, *args: Any) -> torch.Tensor:
        # The loader's epoch is known to the loader alone where it has no length
        self.journal.step(self.batches, self._train_loader.handed.loader.epoch, inputs)
        self.batches += 1
        return super().training_step(model, inputs, *args)


class Start(TrainerCallback):
    """Tells the journal, and after an epoch's end the checkpoint's name, how many batches there were."""

    def __init__(self, trainer: Recording, batches: int) -> None:
        self.trainer, self.batches = trainer, batches

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        accumulated = args.gradient_accumulation_steps
        updates = -(-self.batches // accumulated)
        epochs, rest = divmod(state.global_step, updates)
        self.trainer.batches = epochs * self.batches + rest * accumulated
        self.trainer.journal.start(self.trainer.batches)


def arguments(folder: str | Path, **options: Any) -> TrainingArguments:
    standard = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "learning_rate": 0.1, "logging_strategy": "no"}
    return TrainingArguments(str(folder), **{**standard, **options})


def train(
    folder: str,
    ranks: int,
    kind: str,
    epochs: int,
    kill_at: int | None = None,
    strategy: str = "steps",
    refused: str | None = None,
    **options: Any,
) -> None:
    """Checkpoints every 20 steps or at the end of each epoch. Every process has other seeds."""
    rank, place = int(os.environ.get("RANK", "0")), Path(folder)
    torch.set_num_threads(1)
    resumed = any(place.glob("checkpoint-*"))
    seed = os.getppid() if resumed else 3
    batches = runs.batches_of(ranks)
    length = {"num_train_epochs": epochs}
    if kind == "unsized":
        length = {"max_steps": epochs * batches // options.get("gradient_accumulation_steps", 1)}
    args = arguments(place, save_strategy=strategy, seed=seed, **{"save_steps": 20, **length, **options})
    set_seed(seed)
    if kind == "dealt" and ranks == 1:
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    trainer = Recording(Model(), args, train_loader=lambda: runs.loader_of(kind, rank, ranks))
    trainer.journal = Journal(place / f"journal.{rank}", kill_at)
    trainer.add_callback(Start(trainer, batches))
    if refused is not None:
        with pytest.raises(StateMismatchError, match=refused):
            trainer.train(resume_from_checkpoint=resumed)
        return
    trainer.train(resume_from_checkpoint=resumed)
    updates = epochs * -(-batches // args.gradient_accumulation_steps)
    assert trainer.state.global_step == updates, f"{trainer.state.global_step} steps, and not {updates}"
    trainer._train_loader.handed.shutdown()


def misuse(folder: str, ranks: int) -> None:
    place = Path(folder)

    def trainer(**options: Any) -> ExactTrainer:
        return ExactTrainer(Model(), arguments(place, **options), train_loader=runs.loader_of("map", 0, 1))

    with pytest.raises(ValueError, match="No valid checkpoint"):
        trainer().train(resume_from_checkpoint=True)
    trainer(max_steps=5, save_steps=5, gradient_accumulation_steps=4).train()
    with pytest.raises(StateMismatchError, match=r"takes 10 batches of the epoch for done, and .* handed out 20"):
        trainer(max_steps=6, gradient_accumulation_steps=2).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match=r"lose the step over the last 2 \(gradient_accumulation_steps=4\)"):
        trainer(max_steps=6, gradient_accumulation_steps=4, ignore_data_skip=True).train(str(place / "checkpoint-5"))
    (place / "checkpoint-5" / "torchpipe_loader.pt").unlink()
    with pytest.raises(StateError, match="saved by a Trainer without train_loader="):
        trainer(max_steps=6).train(resume_from_checkpoint=True)


def mixed_in(folder: str, ranks: int) -> None:
    """The mixin goes with other trainers, and with evaluation."""
    seen = []

    class Other(Trainer):
        def training_step(self, model: Any, inputs: Any, *args: Any) -> torch.Tensor:
            seen.extend(inputs["identity"].tolist())
            return super().training_step(model, inputs, *args)

    class Mixed(ExactResume, Other):
        pass

    options = {"num_train_epochs": 1, "eval_strategy": "epoch", "dataloader_num_workers": 2}
    evaluated = torch.utils.data.Subset(Digits(), range(200))
    Mixed(
        Model(), arguments(folder, **options), train_loader=runs.loader_of("graph", 0, 1), eval_dataset=evaluated
    ).train()
    assert sorted(seen) == list(range(DIGITS))
