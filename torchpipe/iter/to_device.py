"""``to_device``: batches arrive on the device, moved ahead of the consumer. Runs in the consumer's process."""

from __future__ import annotations

from typing import TypeVar

import torch

from torchpipe.context import Context
from torchpipe.datapipe import IterDataPipe, functional_datapipe
from torchpipe.device import Backend, resolve
from torchpipe.iter._run_ahead import RunAheadIterator
from torchpipe.iterator import NodeIterator
from torchpipe.validate import check_count

__all__ = ["ToDevice"]

T_co = TypeVar("T_co", covariant=True)


@functional_datapipe("to_device")
class ToDevice(IterDataPipe[T_co]):
    """Moves the tensors of each batch to ``device``, up to ``prefetch`` batches ahead, in one thread and in order.

    ``device`` is ``"xla[:n]"``, ``"cuda[:n]"``, ``"cpu"``, a ``torch.device`` or a :class:`~torchpipe.device.Backend`.
    Lists, tuples, named tuples, mappings and dataclasses keep their types; what is no tensor stays as it is. At most
    ``prefetch`` batches are on the device or on their way, besides those that the consumer holds; with 0 each batch is
    moved when it is asked for. An error of the input or of the transfer is raised at its place in the stream. Under
    XLA the training loop calls ``torch_xla.sync()``; this stage does not.

    State: counts what the consumer received. Batches that were read or moved ahead are taken again after a restore. A
    state saved with this node loads into the same graph without it, and the other way round.

    Raises: ValueError for an unknown device or ``prefetch`` below 0; ImportError if torch_xla is needed and missing.
    """

    alters_stream = False
    runs_in_main = True

    def __init__(
        self, source_datapipe: IterDataPipe[T_co], device: str | torch.device | Backend, prefetch: int = 2
    ) -> None:
        resolve(device)  # complain now, where the mistake is
        self.source_datapipe = source_datapipe
        self.device = device
        self.prefetch_count = check_count("prefetch", prefetch, at_least=0)

    def __len__(self) -> int:
        return len(self.source_datapipe)

    def iterate(self, context: Context) -> NodeIterator[T_co]:
        mover = resolve(self.device)
        return RunAheadIterator(self, context, self.source_datapipe, depth=self.prefetch_count, mover=mover)
