"""Objects in anonymous files: pickled, with their large buffers after the pickle, for processes that map the file.

Runs in every process. The mappings are private: pages are in memory once until somebody writes to them, and a write is
seen by its own process alone, as after a fork. The file has no name that could stay behind: the kernel frees it with
the last process that has it open or mapped.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
from collections.abc import Iterable
from typing import Any, TypeAlias

__all__ = ["Spans", "anonymous_file", "dump_with_buffers", "load_mapped", "write_file"]

_ALIGNMENT = 64

Spans: TypeAlias = tuple[tuple[int, int], ...]  # in the file, of the pickle and then the buffers: (start, size)


def anonymous_file(name: str) -> int:
    """The descriptor of a file in memory that nobody else can open. Raises: OSError."""
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC)
    except (AttributeError, OSError):  # there is none, or a sandbox refuses it
        with tempfile.TemporaryFile(prefix=f"{name}-") as file:
            return os.dup(file.fileno())


def dump_with_buffers(
    pickler: Any, value: Any, least_bytes: int = 0, *, writable: bool = False
) -> tuple[memoryview, list[memoryview]]:
    """(the pickle of ``value``, the buffers of at least ``least_bytes`` that it refers to, in place).

    With ``writable``, what is read-only stays so, in the pickle. Raises: whatever the ``pickler`` class raises over it.
    """
    buffers: list[memoryview] = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # neither in C nor in Fortran order: the pickler makes a copy
            return True
        if raw.nbytes < least_bytes or (writable and raw.readonly):
            return True
        buffers.append(raw)
        return False

    file = io.BytesIO()
    pickler(file, protocol=5, buffer_callback=keep_in_band).dump(value)
    return memoryview(file.getvalue()), buffers


def write_file(name: str, parts: Iterable[memoryview]) -> tuple[int, Spans]:
    """(a new file that ``parts`` are in, where each is). Raises: OSError if there is no room."""
    fd = anonymous_file(name)
    try:
        spans, end = [], 0
        for part in parts:
            spans.append((end, part.nbytes))
            written = 0
            while written < part.nbytes:  # one call writes 2 GiB at most
                written += os.pwrite(fd, part[written:], end + written)
            end += -(-part.nbytes // _ALIGNMENT) * _ALIGNMENT
        os.ftruncate(fd, end)
    except BaseException:
        os.close(fd)
        raise
    return fd, tuple(spans)


def load_mapped(fd: int, spans: Spans) -> Any:
    """The object, a new one. What could be written to before can be again; what is loaded outlives the descriptor."""
    mapped = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY))
    pickled, *buffers = (mapped[start : start + size] for start, size in spans)
    return pickle.loads(pickled, buffers=buffers)
