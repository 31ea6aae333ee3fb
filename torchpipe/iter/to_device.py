"""``to_device``: batches arrive on the device, moved ahead of the consumer. Runs in the consumer's process."""

from __future__ import annotations

import logging
import weakref
from typing import Any, TypeVar, Unpack

import torch

from torchpipe.ahead.iterators import RunAheadIterator
from torchpipe.device import Backend, DeviceKeywords, DeviceOptions, resolve
from torchpipe.device.backend import CpuBackend
from torchpipe.device.prepare import stage_for
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import node_name
from torchpipe.node.validate import check_count, check_input

__all__ = ["ToDevice"]

T_co = TypeVar("T_co", covariant=True)

_log = logging.getLogger("torchpipe")


@functional_datapipe("to_device")
class ToDevice(IterDataPipe[T_co]):
    """Moves the tensors of each batch to ``device``, up to ``prefetch`` batches ahead, in threads and in order.

    ``device`` is ``"xla[:n]"``, ``"cuda[:n]"``, ``"cpu"``, a ``torch.device`` or a :class:`~torchpipe.device.Backend`.
    Lists, tuples, named tuples, mappings and dataclasses keep their types; what is no tensor stays as it is. At most
    ``prefetch`` batches are on the device or on their way, besides those that the consumer holds; with 0 each batch is
    moved when it is asked for. The ``options`` (``host_prefetch`` ... ``pad_to``) are those of
    :class:`~torchpipe.device.DeviceOptions`. An error of the input or of the transfer is raised at its place in the
    stream. Under XLA the training loop calls ``torch_xla.sync()``, or this stage does with ``sync="loader"``.

    State: counts what the consumer received. Batches that were read or moved ahead are taken again after a restore. A
    state saved with this node loads into the same graph without it, and the other way round. Where ``on_new_shape``
    pads, drops or raises, the shapes of the first batch are saved too.

    Raises: ValueError or TypeError for an unknown device or options that do not fit; ImportError if torch_xla is needed
    and missing.
    """

    alters_stream = False
    runs_in_main = True

    def __init__(
        self,
        source_datapipe: IterDataPipe[T_co],
        device: str | torch.device | Backend,
        prefetch: int = 2,
        **options: Unpack[DeviceKeywords],
    ) -> None:
        check_input("to_device", source_datapipe)
        self.source = source_datapipe
        self.device = device
        self.prefetch_count = check_count("prefetch", prefetch, at_least=0)
        self.options = DeviceOptions.of("to_device", device, self.prefetch_count, options)
        resolve(self.options)  # complain now, where the mistake is

    @classmethod
    def with_options(cls, source_datapipe: IterDataPipe[Any], device: Backend, options: DeviceOptions) -> ToDevice[Any]:
        """The stage for a backend that was resolved with these same options."""
        node = cls(source_datapipe, device, options.device_prefetch)
        node.options = options
        return node

    def __len__(self) -> int:
        if self.options.on_new_shape == "drop":
            raise TypeError("the length of to_device(on_new_shape='drop') is not known: batches may be left out")
        return len(self.source)

    def iterate(self, context: Context) -> NodeIterator[T_co]:
        if self.prefetch_count and not context.host.threads and self not in _warned:
            self._tell_of_no_thread()
        backend = self.device if isinstance(self.device, Backend) else resolve(self.options)
        stage = stage_for(backend, self.options, node_name(self))
        return RunAheadIterator(self, context, self.source, stage)

    def _tell_of_no_thread(self) -> None:
        if isinstance(self.device, CpuBackend) or (isinstance(self.device, str) and self.device == "cpu"):
            return  # there is nothing to move
        _warned.add(self)
        _log.warning(
            "to_device(prefetch=%d) moves each batch when it is asked for: in this process functions draw from global "
            "random states of their own, which no thread can have, so nothing overlaps with your loop. Pass "
            "reading_service=InProcessReadingService(prefetch_cnt=1), if they do not draw from global states (those of "
            "random_map do not), or MultiProcessingReadingService(num_workers=1); or say prefetch=0, if it is meant so",
            self.prefetch_count,
        )


_warned: weakref.WeakSet[ToDevice[Any]] = weakref.WeakSet()  # who has said that it has no thread: once, not each epoch
