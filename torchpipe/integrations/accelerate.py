"""``prepare``: a loader for Accelerate's loops, saved by ``save_state`` and put back by ``load_state``. Needs it.

Accelerate rebuilds torch's loaders and saves their positions in one file for all processes, each over the others'. It
also wants to be told by the loader which batch is the last one, for gradient accumulation. docs/trainers.md has it all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState
from accelerate.utils import send_to_device

from torchpipe.integrations._handed import Counted, LoaderOrMaker

__all__ = ["PreparedLoader", "prepare"]

_NONE = object()


def prepare(
    accelerator: Accelerator, loader: LoaderOrMaker[Any], *, device_placement: bool | None = None
) -> PreparedLoader:
    """The loader (or what a function makes) as Accelerate's loops want it, registered for checkpointing.

    Call it in the place of ``accelerator.prepare(loader)``, as often and in the same order in every run.
    ``device_placement``: move batches to the accelerator's device; by default, as the accelerator does.
    Raises: TypeError for what is no loader of torchpipe's.
    """
    moves = accelerator.device_placement if device_placement is None else device_placement
    prepared = PreparedLoader(accelerator, Counted(loader, unused=lambda: prepared.holds), moves)
    accelerator.register_for_checkpointing(prepared)
    return prepared


class PreparedLoader(DataLoaderStateMixin):
    """Yields the batches of the next epoch; see :func:`prepare`. Samplers with ``set_epoch`` are told the epoch.

    ``end_of_dataloader`` is true while the epoch's last batch is trained on; without a length, and of an iterable
    dataset, a batch is taken ahead to know that, which the state does not count. ``remainder`` is not known (-1):
    ``gather_for_metrics`` drops nothing.

    Raises, when iterated: RuntimeError for a length that is wrong, since gradients were not synchronised at the end.
    """

    def __init__(self, accelerator: Accelerator, counted: Counted[Any], moves: bool) -> None:
        self.gradient_state = GradientState()
        self.holds = 0  # batches that have been taken ahead
        self._accelerator = accelerator
        self._counted = counted
        self._moves = moves

    @property
    def epoch(self) -> int:
        """The epoch of the next pass; after ``load_state()``, the one to go on with."""
        return self._counted.epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be of ``epoch``, and the state say so if one has been left (``break``). Not needed: passes
        count their epochs.
        """
        self._counted.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._counted)

    def __iter__(self) -> Iterator[Any]:
        self.holds = 0
        batches = iter(self._counted)
        self.begin()
        try:
            for batch in self._marking_the_last(batches):
                yield send_to_device(batch, self._accelerator.device) if self._moves else batch
        finally:
            self.end()

    def _marking_the_last(self, batches: Iterator[Any]) -> Iterator[Any]:
        batch = next(batches, _NONE)
        while batch is not _NONE:
            following = _NONE
            if self._counted.counts:
                self.end_of_dataloader = self._counted.at_end
            else:
                following = next(batches, _NONE)
                self.end_of_dataloader = following is _NONE
                self.holds = int(following is not _NONE)
            yield batch
            batch = next(batches, _NONE) if following is _NONE else following
            if self.end_of_dataloader != (batch is _NONE):
                raise RuntimeError(
                    f"the loader has given {'fewer' if batch is _NONE else 'more'} batches than len() says, "
                    f"{len(self)}, and Accelerate has synchronised gradients where that says: mend the length of its "
                    "sampler or dataset, or let it have none"
                )

    @property
    def dataset(self) -> Any:
        """Raises: AttributeError. What asks for it wants to skip batches (``skip_first_batches``) or to rebuild."""
        raise AttributeError(
            "load_state() has put the loader where it was, and the next pass goes on from there: skip no batches"
        )

    def state_dict(self) -> dict[str, Any]:
        return self._counted.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._counted.load_state_dict(state_dict)

    def shutdown(self) -> None:
        """End the loader's processes and threads. Idempotent."""
        self._counted.shutdown()
