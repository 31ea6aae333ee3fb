"""What the processes of test_lightning.py do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback, LightningModule, Trainer, seed_everything
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn

from examples.trainers.killed import DIGITS, Batch, Journal, digits, lineage
from tests.trainers import runs
from torchpipe.errors import StateMismatchError
from torchpipe.integrations.lightning import ExactResume

digits()


class Module(LightningModule):
    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self.layer = runs.model()
        self.journal = journal

    def on_train_start(self) -> None:
        self.journal.start(self.trainer.fit_loop.epoch_loop.total_batch_idx + 1)

    def training_step(self, batch: Batch, index: int) -> torch.Tensor:
        self.journal.step(self.trainer.fit_loop.epoch_loop.total_batch_idx, self.current_epoch, batch)
        return nn.functional.cross_entropy(self.layer(batch["pixels"]), batch["labels"])

    def validation_step(self, batch: Batch, index: int) -> None:
        self.log("val", nn.functional.cross_entropy(self.layer(batch["pixels"]), batch["labels"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(
    folder: str,
    ranks: int,
    kind: str,
    epochs: int,
    kill_at: int | None = None,
    validate: bool = False,
    bare: bool = False,
    every: int = 20,
    ends: bool = True,
    **options: Any,
) -> None:
    """Checkpoints every so many steps, and at the ``ends`` of epochs (after validation, if there is any).

    A process that resumes has other seeds than the first one: what the checkpoint says must be enough. ``bare``: the
    loader as it is, without the callback.
    """
    rank = int(os.environ.get("RANK", "0"))
    torch.set_num_threads(1)
    place = Path(folder)
    newest = max(place.glob("*s/*.ckpt"), key=lambda path: path.stat().st_mtime_ns, default=None)
    seed_everything(3 if newest is None or bare else os.getppid(), verbose=False)
    if kind == "dealt" and ranks == 1:
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    journal = Journal(place / f"journal.{rank}", kill_at)
    resume = ExactResume(lambda: runs.loader_of(kind, rank, ranks))
    keep: list[Callback] = [
        ModelCheckpoint(place / "steps", save_top_k=-1, every_n_train_steps=every, save_on_train_epoch_end=False),
        ModelCheckpoint(place / "epochs", save_top_k=-1, every_n_epochs=1, save_on_train_epoch_end=not validate),
    ]
    keep = keep if ends else keep[:1]
    trainer = _trainer(folder, ranks, keep if bare else [resume, *keep], max_epochs=epochs, **options)
    validation = runs.loader_of("map", 0, 1) if validate else None
    loader = runs.loader_of(kind, rank, 1) if bare else resume.loader
    trainer.fit(Module(journal), loader, validation, ckpt_path=newest)


def _trainer(folder: str, ranks: int, callbacks: list[Callback], **options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 or torch.distributed.is_initialized() else "auto",
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )


def fit_again_and_again(folder: str, ranks: int, kind: str, epochs: int, stops: list[int]) -> None:
    """One process, one callback, one loader: ``fit`` in parts, each of which goes on from the last checkpoint."""
    seed_everything(3, verbose=False)
    torch.set_num_threads(1)
    journal = Journal(Path(folder) / "journal.0")
    resume = ExactResume(runs.loader_of(kind, 0, 1))
    path = None
    for stop in [*stops, -1]:
        keep = ModelCheckpoint(folder, save_top_k=-1, every_n_train_steps=20)
        _trainer(folder, 1, [resume, keep], max_epochs=epochs, max_steps=stop).fit(
            Module(journal), resume.loader, ckpt_path=path
        )
        path = max(Path(folder).glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)


def left_out(folder: str, ranks: int) -> None:
    """From a checkpoint of an epoch's end, Lightning would train on one batch of the next epoch under max_steps."""
    journal = Journal(Path(folder) / "journal.0")
    resume = ExactResume(runs.loader_of("map", 0, 1))
    keep = ModelCheckpoint(folder, filename="end", save_on_train_epoch_end=True)
    _trainer(folder, 1, [resume, keep], max_epochs=1).fit(Module(journal), resume.loader)
    for options in ({"max_steps": 60}, {"max_epochs": 2}):
        again = ExactResume(runs.loader_of("map", 0, 1))
        trainer = _trainer(folder, 1, [again], **options)
        if "max_steps" in options:
            with pytest.raises(StateMismatchError, match="after 50 batches of the epoch, as it does under max_steps"):
                trainer.fit(Module(journal), again.loader, ckpt_path=f"{folder}/end.ckpt")
        else:
            trainer.fit(Module(journal), again.loader, ckpt_path=f"{folder}/end.ckpt")
    seen = [number for step in lineage(Path(folder) / "journal.0")[50:] for number in step["ids"]]
    assert sorted(seen) == list(range(DIGITS))


def misuse(folder: str, ranks: int) -> None:
    resume = ExactResume(runs.loader_of("map", 0, 1))
    journal = Journal(Path(folder) / "journal.0")
    with pytest.raises(RuntimeError, match="pass it callback.loader"):
        _trainer(folder, 1, [resume], max_steps=1).fit(Module(journal), runs.loader_of("map", 0, 1))
    with pytest.raises(TypeError, match="a torchpipe.DataLoader, a DataLoader2 or a function"):
        ExactResume([1, 2, 3])
    trainer = _trainer(folder, 1, [], max_steps=1)
    trainer.fit(Module(journal), runs.loader_of("map", 0, 1))
    trainer.save_checkpoint(f"{folder}/other.ckpt")
    with pytest.warns(UserWarning, match="saved without ExactResume"):
        _trainer(folder, 1, [resume], max_steps=2).fit(Module(journal), resume.loader, ckpt_path=f"{folder}/other.ckpt")
