"""``ExactDataLoader``: what torchtitan's trainer builds from a config, iterates and saves, around a loader. Needs it.

torchtitan saves its data loader through torch.distributed.checkpoint, under the name "dataloader", and gives it the
place of this process among those that divide data: peers of tensor, context and pipeline parallelism have the same one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from torchpipe.integrations._handed import AnyLoader
from torchpipe.integrations._ranks import check_position, group_of_position
from torchpipe.integrations.dcp import SavedLoader

try:
    from torchtitan.components.data.loader import BaseDataLoader
except ImportError:  # torchtitan 0.3
    from torchtitan.components.dataloader import BaseDataLoader

__all__ = ["ExactDataLoader"]

Batch = tuple[dict[str, torch.Tensor], torch.Tensor]


class ExactDataLoader(BaseDataLoader):
    """Derive from it, write :meth:`make`, and name its ``Config`` as the trainer's ``dataloader``.

    Yields ``config.epochs`` epochs, or one after the other for ever (``None``). After the last one, torchtitan ends the
    run; a step that has not got all of its batches is not made. A second pass (of a validation loader) yields as many
    again. The state is the position after the last batch that was handed out: at a checkpoint, the last one trained on.

    Raises, when the loader is made: ValueError if it divides data in another way than torchtitan does.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        epochs: int | None = None

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, **given: Any) -> None:
        self.config = config
        self._position = (dp_rank, dp_world_size)
        self._group: dist.ProcessGroup | None = None
        self._before: int | None = 0  # the epochs before those that a pass yields; None: all that there have been
        self._data: SavedLoader[Batch] = SavedLoader(lambda: self._made(given))

    def _made(self, given: dict[str, Any]) -> AnyLoader[Batch]:
        dp_rank, dp_world_size = self._position
        loader = self.make(dp_world_size=dp_world_size, dp_rank=dp_rank, **given)
        check_position(loader, dp_rank, dp_world_size)
        return loader

    @property
    def dp_group(self) -> dist.ProcessGroup:
        """The processes that divide data with this one: for ``DistributedReadingService`` or ``distributed=``.

        Made when it is first asked for, by all processes of the run.
        """
        if self._group is None:
            self._group = group_of_position(*self._position)
        return self._group

    @abstractmethod
    def make(self, *, dp_world_size: int, dp_rank: int, **given: Any) -> AnyLoader[Batch]:
        """The loader of data-parallel rank ``dp_rank``. Its batches are ``({"input": tensor, ...}, labels)``.

        ``given``: what torchtitan hands over besides (``tokenizer``; 0.3: ``seq_len``, ``local_batch_size``; main:
        ``max_context_length``, ``num_tokens_per_batch``). Divide by these two, or by :attr:`dp_group`.
        """

    def __iter__(self) -> Iterator[Batch]:
        epochs, empty = self.config.epochs, 0
        before, self._before = self._data.epoch if self._before is None else self._before, None
        while (epochs is None or self._data.epoch - before < epochs) and empty < 2:  # what is left may have no batches
            empty += 1
            for batch in self._data:
                empty = 0
                yield batch

    def state_dict(self) -> dict[str, Any]:
        return self._data.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing happens for ``{}``, which torchtitan takes for valid."""
        if state_dict:
            self._before = 0
            self._data.load_state_dict(state_dict)

    def close(self) -> None:
        """End the loader's processes and threads. Idempotent."""
        self._data.shutdown()
