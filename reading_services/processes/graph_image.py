"""The graph as processes get it: pickled once; its large arrays and tensors lie in a file that each of them maps.

Made in the main process, loaded in workers and the dispatcher. What nobody writes to is in memory once, however many
processes there are and however they were started: see ``torchpipe/state/shared_list.py``.

The objects that a process is given only at its start: multiprocessing's locks, values and queues, shared tensors.

Made in the main process, loaded in workers and the dispatcher. Such things cannot be pickled ahead, since both sides
are to share the very same one; multiprocessing pickles them while it starts a process, and at no other time. So a
graph's pickle says which they are by number, and they themselves are an argument of the process.
"""

from __future__ import annotations

import ctypes
import multiprocessing.reduction
import os
import pickle
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import heap, queues, sharedctypes, synchronize
from typing import Any

import numpy as np
import torch

from reading_services.hosting.shards import reduce_sendable
from torchpipe.compat.multiprocessing_private import CONNECTION, SCALAR, is_shared_type
from torchpipe.state.pickling import ImagePickler, Reducers, reduce_memmap
from torchpipe.state.shared_list import Spans, dump_with_buffers, load_mapped, write_file

__all__ = ["GraphImage", "PassingPickler"]

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
def _passed_on(values: Sequence[Any]) -> Iterator[None]:
    """Within: what a pickle of :class:`PassingPickler` is loaded with."""
    global _present
    before, _present = _present, values
    try:
        yield
    finally:
        _present = before


_SHARED_BYTES = 64 << 10  # what is smaller is pickled with the rest


class GraphImage:
    """The image of the parts given to :meth:`of`: each :meth:`load` makes new objects. Passed on as an argument."""

    def __init__(
        self, body: bytes, positions: Spans = (), fd: int = -1, inherited: Any = None, passing: Sequence[Any] = ()
    ) -> None:
        self._body = body  # the pickle, if there is no file
        self._inherited = inherited
        self._passing = passing  # what only a process that is being started can be given
        self._positions = positions
        self._fd = fd
        self._finalizer = weakref.finalize(self, os.close, fd) if fd >= 0 else None

    @property
    def sent_bytes(self) -> int | None:
        """The bytes that each process has for itself, without those that it maps; None if nothing is sent."""
        if self._inherited is not None:
            return None
        return self._positions[0][1] if self._positions else len(self._body)

    @classmethod
    def of(cls, *parts: Any) -> GraphImage:
        """The image of ``parts``. Raises: whatever pickling them raises."""
        passing: list[Any] = []
        body, buffers = dump_with_buffers(partial(PassingPickler, passing), parts, _SHARED_BYTES)
        if buffers:
            try:
                fd, positions = write_file("torchpipe-graph", [body, *buffers])
                return cls(b"", positions, fd, passing=passing)
            except OSError:  # no room for them: in every process's own memory then
                passing.clear()
                body, _ = dump_with_buffers(partial(PassingPickler, passing), parts, sys.maxsize)
        return cls(bytes(body), passing=passing)

    @classmethod
    def inherited(cls, *parts: Any) -> GraphImage:
        """``parts`` themselves, for processes that are forked: each has them as they are when it is."""
        return cls(b"", inherited=parts)

    def load(self) -> Any:
        """The parts, new ones. Arrays and tensors can be written to if they could be before; nobody else sees it."""
        if self._inherited is not None:
            return self._inherited
        with _passed_on(self._passing):
            return load_mapped(self._fd, self._positions) if self._positions else pickle.loads(self._body)

    def close(self) -> None:
        """Let go of the file; what was loaded stays good. Idempotent."""
        self._inherited, self._passing = None, ()
        if self._finalizer is not None:
            self._finalizer()

    def __reduce__(self) -> Any:
        if not self._positions:
            return GraphImage, (self._body, (), -1, None, self._passing)
        return _from_duplicate, (self._positions, multiprocessing.reduction.DupFd(self._fd), self._passing)


def _from_duplicate(positions: Spans, duplicate: Any, passing: Sequence[Any]) -> GraphImage:
    return GraphImage(b"", positions, duplicate.detach(), passing=passing)
