"""The number of bytes of an item. Runs wherever items are made, where nodes are measured.

Known are tensors, arrays, bytes, text, tables of pyarrow and open files that have a length, also within lists, tuples
and dicts, where numbers count nothing. An item that holds anything else (images of other libraries, objects of the
user's) has no size that is known: a part of it would mislead. None of their code is run.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Collection
from itertools import islice
from typing import Any

import numpy as np
import torch

from torchpipe.compat.torch_datapipes import StreamWrapper

__all__ = ["bytes_of", "format_bytes"]

_DEEPEST = 6
_MOST_PARTS = 8  # of a container that are looked at, and speak for the others
_MOST_VALUES = 64  # of a dict, which are of many kinds
_MOST_TEXT = 4096  # characters likewise
_TABLES = (("pyarrow", "Table"), ("pyarrow", "RecordBatch"))


def bytes_of(item: Any, depth: int = 0) -> int | None:
    """The bytes of what ``item`` holds, in which numbers are none; None if a part of it has no size that is known."""
    if isinstance(item, torch.Tensor | np.ndarray | np.generic | memoryview):
        return _size(item)
    if item is None or isinstance(item, int | float | complex):
        return 0
    if isinstance(item, bytes | bytearray):
        return len(item)
    if isinstance(item, str):
        if item.isascii() or not item:
            return len(item)
        begin = item[:_MOST_TEXT]
        return round(len(begin.encode("utf-8", "surrogatepass")) * len(item) / len(begin))
    if isinstance(item, dict):
        return _of_parts(dict.values(item), len(item), depth)
    if isinstance(item, list | tuple):
        plain: Any = list if isinstance(item, list) else tuple
        count = plain.__len__(item)
        few = item if count <= _MOST_PARTS else plain.__getitem__(item, slice(None, None, -(-count // _MOST_PARTS)))
        return _of_parts(few, count, depth)
    if isinstance(item, StreamWrapper):
        return _of_file(vars(item).get("file_obj"))
    kind = (type(item).__module__.partition(".")[0], type(item).__name__)
    return _size(item) if kind in _TABLES else None


def _size(item: Any) -> int | None:
    try:
        return int(item.nbytes)
    except Exception:  # a subclass of somebody's, whose elements lie nowhere
        return None


def _of_parts(parts: Collection[Any], count: int, depth: int) -> int | None:
    """The sum over ``parts``, the first of which speak for ``count`` of them."""
    if depth >= _DEEPEST:
        return None
    total = looked = 0
    for part in islice(parts, _MOST_VALUES):
        size = bytes_of(part, depth + 1)
        if size is None:
            return None
        total += size
        looked += 1
    return total if looked == count else round(total * count / looked)


def _of_file(file: Any) -> int | None:
    """The length of an open file: in memory, on disk, at a URL, in a tar archive."""
    if type(file) is io.BytesIO:
        return file.getbuffer().nbytes
    if type(file) is io.TextIOWrapper:
        file = file.buffer
    raw = file.raw if isinstance(file, io.BufferedReader) else file
    try:
        if type(raw) is not io.FileIO:
            size = raw.size if type(raw).__module__.partition(".")[0] in ("torchpipe", "tarfile") else None
            return size if type(size) is int else None
        status = os.fstat(raw.fileno())
        return status.st_size if stat.S_ISREG(status.st_mode) else None
    except (AttributeError, OSError, ValueError):  # it has none, or is closed
        return None


def format_bytes(value: float) -> str:
    """With three digits, in powers of 1000."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} B"
