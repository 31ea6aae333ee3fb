"""``SharedCopy``: a graph, a dataset or a model, in the memory of a host once, for all its processes and threads.

Runs in any process, under Linux. All of it lies in a file that every process maps (``torchpipe/state/shared_list.py``).
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Generic, TypeVar

import torch

from torchpipe.state.pickling import ImagePickler, Reducers
from torchpipe.state.shared_list import Spans, dump_with_buffers, load_mapped, write_file
from torchpipe.state.tensors import reduce_tensor

__all__ = ["SharedCopy"]

T = TypeVar("T")


class SharedCopy(Generic[T]):
    """A copy of ``value`` whose tensors and arrays exist once on this host; :meth:`get` gives it, in any process.

    Make it before processes start and hand it to them: inherited by fork, as an argument under spawn and forkserver, or
    to threads, which all get the same object. What ``xmp.MpModelWrapper`` is for, which needs fork. The original is not
    touched; drop it. Python objects other than the buffers of plain CPU tensors, parameters and contiguous numpy arrays
    exist once in each process. A write into a tensor is seen by the process that writes only. Views of one tensor
    become tensors of their own.

    The process that made it must live, and not have closed it, until the others have received it.

    Raises: what pickling raises, for a value that cannot be; OSError if memory runs out.
    """

    def __init__(self, value: T) -> None:
        pickled, buffers = dump_with_buffers(_Pickler, value)
        self._open(*write_file("torchpipe-shared-copy", [pickled, *buffers]))

    def _open(self, fd: int, offsets: Spans) -> None:
        self._fd, self._offsets = fd, offsets
        self._close = weakref.finalize(self, _close_once, fd, os.getpid())
        self._size = os.fstat(fd).st_size
        self._value: T = load_mapped(fd, offsets)

    def get(self) -> T:
        """The value; at each call the same object."""
        return self._value

    @property
    def shared_bytes(self) -> int:
        """The bytes of memory that all processes of this host share."""
        return self._size

    def close(self) -> None:
        """Hand it to no more processes. What :meth:`get` gave stays valid, here and elsewhere. Idempotent."""
        self._close()

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._close.alive:
            raise ValueError("this SharedCopy was closed: hand it to other processes before close()")
        return _receive, (os.getpid(), self._fd, self._size, self._offsets)


def _receive(pid: int, fd: int, size: int, offsets: Spans) -> SharedCopy[Any]:
    try:
        here = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
        if os.fstat(here).st_size != size:
            os.close(here)
            raise FileNotFoundError(f"descriptor {fd} of process {pid} is another file now")
    except OSError as error:
        raise RuntimeError(
            f"the SharedCopy of process {pid} cannot be opened in process {os.getpid()} ({error}): has process {pid} "
            "ended, or closed it? It must live until others have received it, on the same host"
        ) from error
    copy: SharedCopy[Any] = SharedCopy.__new__(SharedCopy)
    copy._open(here, offsets)
    return copy


def _close_once(fd: int, pid: int) -> None:
    if os.getpid() == pid:  # a forked child's copy of the number may be another file by now
        os.close(fd)


class _Pickler(ImagePickler):
    """For lambdas in graphs, too, with the memory of tensors left out of the pickle."""

    dispatch_table = Reducers({**ImagePickler.dispatch_table, torch.Tensor: reduce_tensor})
