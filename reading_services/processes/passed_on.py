"""The objects that a process is given only at its start: multiprocessing's locks, values and queues, shared tensors.

Made in the main process, loaded in workers and the dispatcher. Such things cannot be pickled ahead, since both sides
are to share the very same one; multiprocessing pickles them while it starts a process, and at no other time. So a
graph's pickle says which they are by number, and they themselves are an argument of the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import heap, queues, sharedctypes, synchronize
from typing import Any

import numpy as np
import torch

from reading_services.hosting.items import reduce_sendable
from torchpipe.compat.multiprocessing_private import CONNECTION, SCALAR, is_shared_type
from torchpipe.state.file_maps import reduce_memmap
from torchpipe.state.pickling import ImagePickler, Reducers

__all__ = ["PassingPickler", "passed_on"]

_KINDS = (
    synchronize.SemLock,
    synchronize.Condition,
    synchronize.Event,
    synchronize.Barrier,
    queues.Queue,
    queues.SimpleQueue,
    CONNECTION,
    sharedctypes.SynchronizedBase,
    heap.BufferWrapper,
)
_RAW = (SCALAR, ctypes.Array, ctypes.Structure)  # multiprocessing knows those types that it has shared

_present: Sequence[Any] = ()  # while a graph is loaded: what was passed on with it


class PassingPickler(ImagePickler):
    """``passing`` collects what its pickle only gives the number of."""

    def __init__(self, passing: list[Any], *args: Any, **options: Any) -> None:
        def aside(value: Any) -> Any:
            passing.append(value)
            return _take, (len(passing) - 1,)

        def reduce_tensor(tensor: torch.Tensor) -> Any:
            shared = type(tensor) is torch.Tensor and tensor.device.type == "cpu" and tensor.layout is torch.strided
            return aside(tensor) if shared and tensor.is_shared() else reduce_sendable(tensor)  # type: ignore[no-untyped-call]

        class Table(Reducers):
            def __missing__(self, kind: type) -> Any:
                raw = issubclass(kind, _RAW) and is_shared_type(kind)
                return aside if raw or issubclass(kind, _KINDS) else super().__missing__(kind)

        self.dispatch_table = Table(
            {**ImagePickler.dispatch_table, torch.Tensor: reduce_tensor, np.memmap: reduce_memmap}
        )
        super().__init__(*args, **options)  # which looks at the table


def _take(number: int) -> Any:
    return _present[number]


@contextmanager
def passed_on(values: Sequence[Any]) -> Iterator[None]:
    """Within: what a pickle of :class:`PassingPickler` is loaded with."""
    global _present
    before, _present = _present, values
    try:
        yield
    finally:
        _present = before
