"""How many bytes the items of a node have, of a sample of them. Runs wherever items are made, where nodes are measured.

Known are tensors, arrays, bytes, text, tables of pyarrow and open files that have a length, also within lists, tuples
and dicts, where numbers count nothing. What holds anything else (images of other libraries, objects of the user's) has
no size that is known: a part of it would mislead. None of their code is run.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Collection
from itertools import islice
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch

from torchpipe.compat.torch_datapipes import StreamWrapper
from torchpipe.stats.node_sheet import BYTES, SIZED, NodeSheet

__all__ = ["NEVER", "Sizing", "bytes_of"]

NEVER = 1 << 62
_SHARE = 1000  # a look may take so small a part of the time that items take
_MOST_STEP = 1024  # items between two looks
_EACH = 32  # items at first are all looked at: short epochs are known exactly
_MOST_IN_VAIN = 16  # looks, all of them
_DEEPEST = 6
_MOST_PARTS = 8  # of a container that are looked at, and speak for the others
_MOST_VALUES = 64  # of a dict, which are of many kinds
_MOST_TEXT = 4096  # characters likewise
_TABLES = (("pyarrow", "Table"), ("pyarrow", "RecordBatch"))


class Sizing:
    """Looks at an item of a node now and then, and notes its size for those since the last look."""

    def __init__(self, sheet: NodeSheet, node: int) -> None:
        self._sheet = sheet
        self._node = node
        self._step = 1
        self._in_vain = self._looks = 0
        self._looked_ns = perf_counter_ns()

    def look(self, item: Any) -> int:
        """Note the size of ``item``, if it has one: how many items further on the next one is to be shown."""
        began, step = perf_counter_ns(), self._step
        size = bytes_of(item)
        if size is not None:
            self._sheet.count(self._node, BYTES, size * step)
            self._sheet.count(self._node, SIZED, step)
        if not size:
            self._in_vain += 1
            if self._in_vain == _MOST_IN_VAIN:
                return NEVER
        elif self._in_vain:
            self._in_vain = -NEVER  # there are some that have one
        now = perf_counter_ns()
        item_ns, self._looked_ns = (began - self._looked_ns) // step, now
        self._looks += 1
        if self._looks < _EACH:
            return 1
        # By what items have taken until now, and not by what this one is: large ones are not preferred
        self._step = max(1, min(_MOST_STEP, 2 * step, _SHARE * (now - began) // (item_ns + 1)))
        return self._step


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
