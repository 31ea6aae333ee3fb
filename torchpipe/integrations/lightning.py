"""``ExactResume``: Lightning's ``Trainer`` goes on exactly where a checkpoint was taken. Needs ``pytorch-lightning``.

Lightning saves a loader's state in mid-epoch and loads it only if it takes the epoch for unfinished; it sets the epoch
by ``loader.sampler``, after ``iter()``; and it holds one batch of a loader without length. docs/trainers.md has it all.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer

from torchpipe.errors import StateMismatchError
from torchpipe.integrations._handed import Handed, LoaderOrMaker

__all__ = ["ExactResume"]


class ExactResume(Callback):
    """Keeps the position of a training loader in Lightning's checkpoints, and hands Lightning the loader.

    ::

        resume = ExactResume(loader)  # or a function that makes it, once the ranks know each other
        trainer = Trainer(callbacks=[resume, ModelCheckpoint(...)])
        trainer.fit(model, resume.loader, ckpt_path="last")

    The loader divides the data among ranks itself: Lightning leaves it as it is. The state is that of the batches that
    were trained on, on every rank; it is one for all ranks, so that rank 0's checkpoint is enough.

    Raises: TypeError for what is no loader of torchpipe's; RuntimeError if ``fit()`` is given another loader;
    StateMismatchError where Lightning would leave out the epoch that comes.
    """

    def __init__(self, loader: LoaderOrMaker[Any]) -> None:
        self._trainer: Trainer | None = None
        self._handed: Handed[Any] = Handed(loader, unused=self._unused, most=self._most)
        self.loader = _Loader(self._handed)

    def _unused(self) -> int:
        """Without a length, Lightning takes a batch before it trains on the one before."""
        return int(self._trainer is not None and self._trainer.num_training_batches == float("inf"))

    def _most(self) -> float:
        """The length, or ``limit_train_batches``."""
        return float("inf") if self._trainer is None else self._trainer.num_training_batches

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._trainer = trainer
            self._handed.restart()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.train_dataloader is not self.loader:
            raise RuntimeError(
                f"ExactResume saves the position of its own loader, and fit() trains with "
                f"{trainer.train_dataloader!r}: pass it callback.loader, or return that from train_dataloader()"
            )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if 1 < self._most() <= batch_idx + 1 and self._handed.at_start:
            raise StateMismatchError(
                f"the checkpoint is of an epoch's end, and Lightning takes it for one after {batch_idx} batches of the "
                "epoch, as it does under max_steps: it would train on one batch of the next epoch, and leave out the "
                "others. Resume with max_epochs in the place of max_steps, or from a checkpoint that was taken by steps"
            )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._handed.shutdown()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit" and self.state_key not in checkpoint.get("callbacks", {}):
            warnings.warn(
                "the checkpoint was saved without ExactResume: the epoch that it stands in begins from its start",
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        return self._handed.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._handed.load_state_dict(state_dict)


class _Loader:
    """The loader of ``fit()``. Lightning keeps a state of it as well: an empty one, the callback's is always loaded."""

    def __init__(self, handed: Handed[Any]) -> None:
        self._handed = handed

    def __iter__(self) -> Iterator[Any]:
        return iter(self._handed)

    def __len__(self) -> int:
        return len(self._handed)

    @property
    def sampler(self) -> Handed[Any]:
        """The object on which Lightning looks for ``set_epoch``."""
        return self._handed

    def state_dict(self) -> dict[str, Any]:
        return {"saved_by": ExactResume.__name__}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        return
