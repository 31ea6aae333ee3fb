"""``SavedLoader``: a loader in the checkpoints of torch.distributed.checkpoint, saved and loaded by all ranks.

DCP writes what has the same name on several ranks once, and reads the names into the state that a loader has *now*. So
what is the same on all ranks has one name, and what is a rank's or a shard's own has one of its own: no rank asks
another for its state when it saves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from torchpipe.integrations._handed import Counted
from torchpipe.integrations._ranks import keys_of, own_state, state_of_keys

__all__ = ["SavedLoader"]

T = TypeVar("T")


class SavedLoader(Counted[T]):
    """Iterates a loader of torchpipe's (or what a function makes), and is ``Stateful`` as DCP wants it.

    ::

        data = SavedLoader(loader)
        dcp.load({"model": ..., "data": data}, checkpoint_id=folder)
        for epoch in range(data.epoch, epochs):
            for batch in data:
                ...
                dcp.save({"model": ..., "data": data}, checkpoint_id=folder)  # or dcp.async_save

    Each ``for`` loop is the next epoch, and samplers with ``set_epoch`` are told it. The state is the position after
    the last batch that was received, also behind a loop that was left early, unless :meth:`set_epoch` has said that the
    next epoch follows; as bytes: one key for a ``DataLoader``; one for each shard with ``total_shards``,
    which any number of ranks loads; else one for each rank. A rank saves its own without asking
    others. All ranks save at the same step, and load together.

    Raises: TypeError for what is no loader of torchpipe's; StateError and StateMismatchError as the loader does, and
    for keys that are missing or of two checkpoints; RankError if that has happened on another rank.
    """

    _step = 0  # batches received since the run began, through all resumes: the same on all ranks

    def __iter__(self) -> Iterator[T]:
        return self._counting(super().__iter__())

    def _counting(self, batches: Iterator[T]) -> Iterator[T]:
        for batch in batches:
            self._step += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return keys_of(self.loader, own_state(self.loader), self._step)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state, self._step = state_of_keys(self.loader, dict(state_dict))
        super().load_state_dict(state)
