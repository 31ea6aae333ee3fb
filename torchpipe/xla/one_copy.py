"""``SharedCopy``: a graph, a dataset or a model, in the memory of a host once, for all its processes and threads.

Runs in any process, under Linux.

Its tensors and numpy arrays lie in an anonymous memory file (``memfd_create``) which every process maps privately:
pages are shared until somebody writes to them, and a write is seen by its own process alone, as after a fork. The file
has no name that could stay behind: the kernel frees it with the last process that has it open or mapped.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import cloudpickle
import torch

__all__ = ["SharedCopy"]

_ALIGN = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the parts are in the file: first the pickle, then its buffers."""

    size: int
    pickled: tuple[int, int]  # offset and length
    buffers: tuple[tuple[int, int], ...]


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
        fd, layout = _write(value)
        self._open(fd, layout)

    def _open(self, fd: int, layout: _Layout) -> None:
        self._fd, self._layout = fd, layout
        self._close = weakref.finalize(self, _close_once, fd, os.getpid())
        mapping = mmap.mmap(fd, layout.size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        view = memoryview(mapping)
        buffers = [view[start : start + length] for start, length in layout.buffers]
        start, length = layout.pickled
        self._value: T = pickle.loads(view[start : start + length], buffers=buffers)

    def get(self) -> T:
        """The value; at each call the same object."""
        return self._value

    @property
    def shared_bytes(self) -> int:
        """How much memory all processes of this host share."""
        return self._layout.size

    def close(self) -> None:
        """Hand it to no more processes. What :meth:`get` gave stays valid, here and elsewhere. Idempotent."""
        self._close()

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._close.alive:
            raise ValueError("this SharedCopy was closed: hand it to other processes before close()")
        return _receive, (os.getpid(), self._fd, self._layout)


def _receive(pid: int, fd: int, layout: _Layout) -> SharedCopy[Any]:
    try:
        here = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
        if os.fstat(here).st_size != layout.size:
            os.close(here)
            raise FileNotFoundError(f"descriptor {fd} of process {pid} is another file now")
    except OSError as error:
        raise RuntimeError(
            f"the SharedCopy of process {pid} cannot be opened in process {os.getpid()} ({error}): has process {pid} "
            "ended, or closed it? It must live until others have received it, on the same host"
        ) from error
    copy: SharedCopy[Any] = SharedCopy.__new__(SharedCopy)
    copy._open(here, layout)
    return copy


def _close_once(fd: int, pid: int) -> None:
    if os.getpid() == pid:  # a forked child's copy of the number may be another file by now
        os.close(fd)


def _write(value: Any) -> tuple[int, _Layout]:
    stream, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(value)
    parts = [memoryview(stream.getbuffer()), *(buffer.raw() for buffer in buffers)]
    places, end = [], 0
    for part in parts:
        places.append((end, part.nbytes))
        end += -(-part.nbytes // _ALIGN) * _ALIGN
    fd = os.memfd_create("torchpipe-shared-copy", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, end)
        for part, (offset, _) in zip(parts, places):
            _write_all(fd, part, offset)
    except BaseException:
        os.close(fd)
        raise
    return fd, _Layout(end, places[0], tuple(places[1:]))


def _write_all(fd: int, part: memoryview, offset: int) -> None:
    done = 0
    while done < part.nbytes:  # one call writes 2 GiB at most
        done += os.pwrite(fd, part[done:], offset + done)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's, for lambdas in graphs, with the memory of tensors left out of the pickle."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.nn.Parameter and _is_plain(obj) and not vars(obj):
            return torch.nn.Parameter, (obj.detach(), obj.requires_grad)
        if type(obj) is torch.Tensor and _is_plain(obj) and not obj.requires_grad and obj.numel():
            flat = obj.detach().contiguous().reshape(-1).view(torch.uint8)
            raw: Any = flat.numpy()
            return _tensor, (pickle.PickleBuffer(raw), obj.dtype, tuple(obj.shape))
        return super().reducer_override(obj)


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _tensor(buffer: Any, dtype: torch.dtype, shape: Iterable[int]) -> torch.Tensor:
    return torch.frombuffer(buffer, dtype=dtype).reshape(tuple(shape))
