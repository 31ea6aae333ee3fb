"""``ExactTrainer``: Hugging Face's ``Trainer`` that takes its batches from a loader. Needs transformers.

The Trainer never asks a loader for a state: to resume, it draws the batches of the epoch again and throws them away. It
counts them meanwhile, and its gradient accumulation depends on that count; so here it is given placeholders for them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset
from transformers import Trainer
from transformers.trainer_utils import get_last_checkpoint

from torchpipe.errors import StateError, StateMismatchError
from torchpipe.integrations._handed import Handed, LoaderOrMaker

__all__ = ["ExactResume", "ExactTrainer"]

_FILE = "torchpipe_loader.pt"


class ExactResume:
    """A mixin: ``class MyTrainer(ExactResume, SFTTrainer)`` trains on ``MyTrainer(..., train_loader=loader)``.

    ``train_loader`` is a loader of torchpipe's, or a function that makes one; ``train_dataset``, and all arguments that
    say how to load it, are of no use then. Each checkpoint has the position after the last batch that was trained on,
    in ``torchpipe_loader.pt``, plain data; ``train(resume_from_checkpoint=...)`` goes on from there.

    Raises: StateError for a checkpoint without that file; StateMismatchError if the Trainer counts other batches than
    the loader; ValueError for ``ignore_data_skip=True`` where it would lose an optimizer step.
    """

    def __init__(self, *args: Any, train_loader: LoaderOrMaker[Any], **kwargs: Any) -> None:
        self._train_loader = _TrainLoader(Handed(train_loader))
        super().__init__(*args, **kwargs)

    def get_train_dataloader(self) -> Any:
        return self._train_loader

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir) or True  # type: ignore[attr-defined]
        if isinstance(resume_from_checkpoint, str | Path):
            self._restore(Path(resume_from_checkpoint))
        return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """With each checkpoint, and before the Trainer's own state, without which none is taken up."""
        if _internal_call and output_dir is not None:
            loader = self._train_loader.handed
            state = {"loader": loader.state_dict(), "batches": len(loader) if loader.sized else None}
            if self.args.should_save:  # type: ignore[attr-defined]
                Path(output_dir).mkdir(parents=True, exist_ok=True)
                torch.save(state, Path(output_dir) / _FILE)
        super().save_model(output_dir, _internal_call)  # type: ignore[misc]

    def _restore(self, checkpoint: Path) -> None:
        if not (checkpoint / _FILE).exists():
            raise StateError(
                f"{checkpoint} has no {_FILE}: it was saved by a Trainer without train_loader=. Begin a new run from "
                "its weights, or take a checkpoint of this Trainer's"
            )
        loader, args = self._train_loader, self.args  # type: ignore[attr-defined]
        state = torch.load(checkpoint / _FILE, weights_only=True)
        loader.handed.load_state_dict(state["loader"])
        batches = len(loader) if loader.handed.sized else None
        if batches != state["batches"]:
            raise StateMismatchError(
                f"{checkpoint}: an epoch had {state['batches']} batches for each rank, and has {batches} here. The "
                "Trainer counts by them, and would go on elsewhere: resume on as many ranks, with batches of one size"
            )
        steps = json.loads((checkpoint / "trainer_state.json").read_text())["global_step"]
        accumulated = args.gradient_accumulation_steps
        if not loader.handed.sized:
            loader.skipped = steps % args.max_steps * accumulated
            return
        loader.skipped = steps % max(math.ceil(len(loader) / accumulated), 1) * accumulated
        delivered = loader.handed.delivered
        if loader.skipped != delivered:
            raise StateMismatchError(
                f"{checkpoint}: after {steps} steps the Trainer takes {loader.skipped} batches of the epoch for done, "
                f"and the loader has handed out {delivered}. Was it saved with another "
                f"gradient_accumulation_steps than {accumulated}?"
            )
        if args.ignore_data_skip and delivered and len(loader) % accumulated:
            rest = len(loader) % accumulated
            raise ValueError(
                f"ignore_data_skip=True: the Trainer would count the epoch's batches from 0 again, and lose the step "
                f"over the last {rest} (gradient_accumulation_steps={accumulated}). Leave it out: no batch is made to "
                "be skipped"
            )


class ExactTrainer(ExactResume, Trainer):
    """``transformers.Trainer``, as :class:`ExactResume` says."""


class _TrainLoader:
    """The loader that the Trainer iterates, and rebuilds (``accelerate.skip_first_batches``) to go on in mid-epoch."""

    batch_size = prefetch_factor = None
    drop_last = False

    def __init__(self, handed: Handed[Any]) -> None:
        self.handed = handed
        self.skipped = 0  # the batches that the Trainer is going to skip

    @property
    def dataset(self) -> _Rest:
        return _Rest(self)

    @staticmethod
    def collate_fn(batch: Any) -> Any:
        return batch

    def set_epoch(self, epoch: int) -> None:
        if self.handed.sized:
            self.handed.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.handed)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.handed)


class _Rest(IterableDataset[Any]):
    """Nothing for each batch that the Trainer skips, then the batches that are left of the epoch."""

    def __init__(self, loader: _TrainLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._loader.skipped):
            yield None
        yield from self._loader
