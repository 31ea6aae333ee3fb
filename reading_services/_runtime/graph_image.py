"""The graph as processes get it: pickled once; its large arrays and tensors lie in a file that each of them maps.

Made in the main process, loaded in workers and the dispatcher.

The mapping is private: a process may write to its arrays, and gets pages of its own where it does. What nobody writes
to is in memory once, however many processes there are and however they were started. The file is anonymous, as an
arena is, and ends with the last process that has it open or mapped.
"""

from __future__ import annotations

import io
import mmap
import multiprocessing.reduction
import os
import pickle
import weakref
from typing import Any

import torch

from reading_services._runtime.arena import anonymous_file
from reading_services._runtime.items import reduce_tensor
from torchpipe.state.pickling import CloudPickler, Reducers

__all__ = ["GraphImage"]

_SHARED_BYTES = 64 << 10  # what is smaller is pickled with the rest
_ALIGNMENT = 64


class GraphImage:
    """What :meth:`of` was given, again and again: each :meth:`load` makes new objects. Passed on as an argument."""

    def __init__(self, body: bytes, buffers: tuple[tuple[int, int, bool], ...] = (), fd: int = -1) -> None:
        self._body = body
        self._buffers = buffers  # (where in the file, size in bytes, read-only?)
        self._fd = fd
        self._finalizer = weakref.finalize(self, os.close, fd) if fd >= 0 else None

    @classmethod
    def of(cls, *parts: Any) -> GraphImage:
        """The image of ``parts``. Raises: whatever pickling them raises."""
        buffers: list[memoryview] = []

        def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
            try:
                raw = buffer.raw()
            except BufferError:  # neither in C nor in Fortran order: the pickler makes a copy
                return True
            if raw.nbytes >= _SHARED_BYTES:
                buffers.append(raw)
            return raw.nbytes < _SHARED_BYTES

        body = _dump(parts, keep_in_band)
        if not buffers:
            return cls(body)
        try:
            return cls(body, *_write(buffers))
        except OSError:  # no room for them: in every process's own memory then
            return cls(_dump(parts, None))

    def load(self) -> Any:
        """The parts, new ones. Arrays and tensors can be written to if they could be before; nobody else sees it."""
        if not self._buffers:
            return pickle.loads(self._body)
        mapped = memoryview(mmap.mmap(self._fd, 0, access=mmap.ACCESS_COPY))
        views = [mapped[start : start + size] for start, size, _ in self._buffers]
        return pickle.loads(
            self._body,
            buffers=[view.toreadonly() if item[2] else view for view, item in zip(views, self._buffers)],
        )

    def close(self) -> None:
        """Let go of the file; what was loaded stays good. Idempotent."""
        if self._finalizer is not None:
            self._finalizer()

    def __reduce__(self) -> Any:
        if not self._buffers:
            return GraphImage, (self._body,)
        return _from_duplicate, (self._body, self._buffers, multiprocessing.reduction.DupFd(self._fd))


def _from_duplicate(body: bytes, buffers: tuple[tuple[int, int, bool], ...], duplicate: Any) -> GraphImage:
    return GraphImage(body, buffers, duplicate.detach())


class _Pickler(CloudPickler):
    dispatch_table = Reducers({**CloudPickler.dispatch_table, torch.Tensor: reduce_tensor})


def _dump(parts: Any, keep_in_band: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=keep_in_band).dump(parts)
    return file.getvalue()


def _write(buffers: list[memoryview]) -> tuple[tuple[tuple[int, int, bool], ...], int]:
    """(where each is, the file that they are in). Raises: OSError if there is no room."""
    fd = anonymous_file("torchpipe-graph")
    try:
        places, end = [], 0
        for buffer in buffers:
            places.append((end, buffer.nbytes, buffer.readonly))
            written = 0
            while written < buffer.nbytes:
                written += os.pwrite(fd, buffer[written:], end + written)
            end += -(-buffer.nbytes // _ALIGNMENT) * _ALIGNMENT
        os.ftruncate(fd, end)
    except BaseException:
        os.close(fd)
        raise
    return tuple(places), fd
