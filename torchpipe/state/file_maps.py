"""Arrays that are mapped from files (``np.memmap``), for processes of the same machine: they map the file, too.

Runs in the process that pickles and in those that load. A pickle of numpy's holds all the data, so that each process
would have a copy, of a file that may be larger than its memory.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

__all__ = ["reduce_memmap"]

_MODES = {"r": "r", "r+": "r+", "w+": "r+"}  # how another process opens it; "c" may have changes that no file has
_COMPARED = 4096  # bytes


def reduce_memmap(array: Any) -> Any:
    """The path of the file, as from ``__reduce_ex__``, if it has the data that the array shows; else all the data."""
    root = _mapped(array)
    if root is None or root.filename is None or root.mode not in _MODES or not array.size:
        return array.__reduce_ex__(5)
    order = "C" if root.flags.c_contiguous else "F"
    opened = (str(root.filename), root.dtype, _MODES[root.mode], root.offset, root.shape, order)
    if not _shows_the_same(root, opened):
        return array.__reduce_ex__(5)
    if array is root:
        return _reopen, (opened,)
    start = _address(array) - _address(root)
    return _reopen, (opened, array.dtype, array.shape, start, array.strides)


def _mapped(array: Any) -> Any:
    """The array, of those that ``array`` looks into, that has mapped the file; None if none has."""
    if not isinstance(array, np.memmap):
        return None
    base: Any = array.base
    return array if isinstance(base, mmap.mmap) else _mapped(base)


def _shows_the_same(root: Any, opened: tuple[Any, ...]) -> bool:
    """True if the file is still there, and begins and ends as ``root``: a name may have come to another file."""
    try:
        present = _flat(_open(*opened))
    except (OSError, ValueError):
        return False
    count = max(1, _COMPARED // max(1, root.dtype.itemsize))
    mapped = _flat(root)
    return all(mapped[part].tobytes() == present[part].tobytes() for part in (slice(count), slice(-count, None)))


def _open(path: str, dtype: Any, mode: Any, offset: int, shape: Any, order: Any) -> Any:
    return np.memmap(path, dtype=dtype, mode=mode, offset=offset, shape=shape, order=order)


def _reopen(opened: Any, dtype: Any = None, shape: Any = None, start: int = 0, strides: Any = None) -> Any:
    root = _open(*opened)
    return root if dtype is None else np.ndarray(shape, dtype, _flat(root), start, strides)


def _flat(root: Any) -> Any:
    return (root if root.flags.c_contiguous else root.T).reshape(-1)


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])
