"""``SavedLoader``: a loader in the checkpoints of torch.distributed.checkpoint, saved and loaded by all ranks.

DCP writes rank 0's value of what has one name on all ranks, and reads into the state that a loader has *now*: so a
state must have one name and one type, and be the same on every rank.
"""

from __future__ import annotations

from typing import Any, TypeVar

from torchpipe.integrations._handed import Counted
from torchpipe.state import decode, encode

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

    Each ``for`` loop is the next epoch, and samplers with ``set_epoch`` are told it. The state is one run of bytes, the
    position after the last batch that was received; all ranks save and load it together.

    Raises: TypeError for what is no loader of torchpipe's; StateError and StateMismatchError as the loader does.
    """

    def state_dict(self) -> dict[str, Any]:
        return {"state": encode(super().state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(decode(bytes(state_dict["state"]), allow_pickle=False))
