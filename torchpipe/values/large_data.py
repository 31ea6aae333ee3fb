"""Data: what an object holds that is too large to be taken down. A state has a sample of it, by which it is compared.

Runs in every process. How large a value is counts with the containers, arrays and text in it, and, where a container
has many objects, with what is in these.
"""

from __future__ import annotations

import array
import itertools
import math
import types
import zlib
from collections import deque
from typing import Any

import numpy as np
import torch

from torchpipe.state.copying import CONTAINERS, attributes_of, entries_of
from torchpipe.state.shared_list import SharedList
from torchpipe.values.object_contents import Memory

__all__ = ["MOST_KEPT", "is_larger", "sample_of", "spread"]

MOST_KEPT = 1000 << 10  # bytes: a list of 100,000 numbers, or 10,000 names of files. What is larger is data
_SAMPLED = 64  # items
_FEW = 64  # objects in one container: these are followed, however much they hold
_OBJECT = 96  # bytes
_CONTAINER = 32  # bytes, beside its entries: of one that can be changed

_NUMBERS = frozenset({bool, int, float, type(None)})
_ATOMS = _NUMBERS | {str, bytes}
_TEXTS = (str, bytes, bytearray)
_ARRAYS = (torch.Tensor, np.ndarray, array.array, Memory)
_MEASURED = (*_ARRAYS, *CONTAINERS)
_CODE = (type, types.ModuleType, types.FunctionType, torch.nn.Module)


def is_larger(value: Any, nbytes: int) -> bool:
    """True if ``value`` takes more than about ``nbytes``."""
    kind = type(value)
    if kind in _TEXTS:
        return len(value) > nbytes
    if kind in _NUMBERS or not (isinstance(value, _MEASURED) or kind is SharedList or _tells_nbytes(kind)):
        return False
    waiting, taken, seen = [(value, False)], 0, set[int]()
    while waiting and taken <= nbytes:
        item, enters = waiting.pop()
        kind = type(item)
        if kind in _TEXTS:
            taken += len(item)
        elif isinstance(item, _ARRAYS):
            taken += _nbytes(item)
            if isinstance(item, np.ndarray) and item.dtype.hasobject and taken <= nbytes:
                waiting += [(part, item.size > _FEW) for part in item.flat]
        elif kind is SharedList:  # of any size: nobody can change it
            return True
        elif isinstance(item, CONTAINERS):
            count, held = entries_of(item)
            taken += 8 * count + (0 if isinstance(item, tuple) else _CONTAINER)
            if taken <= nbytes:
                waiting += [(part, count > _FEW) for part in held if type(part) not in _NUMBERS]
        elif kind not in _NUMBERS and not isinstance(item, _CODE):
            taken += _OBJECT
            if _tells_nbytes(kind):
                taken += _nbytes(item)
            if enters and id(item) not in seen:
                seen.add(id(item))
                waiting += [(part, True) for _, part in attributes_of(item)]
    return taken > nbytes


def _tells_nbytes(kind: type) -> bool:
    """Tables, say."""
    return isinstance(getattr(kind, "nbytes", None), property | types.GetSetDescriptorType)


def _nbytes(value: Any) -> int:
    if isinstance(value, Memory):
        return value.view.nbytes
    if isinstance(value, array.array):
        return len(value) * value.itemsize
    try:
        return int(value.nbytes)
    except Exception:  # of a class of somebody's, or a sparse tensor
        return 0


def sample_of(value: Any) -> int:
    """A checksum of some of it, at even distances: other data, or the same in another order, have another one."""
    return zlib.crc32(repr(_sampled(value, _SAMPLED)).encode(errors="surrogatepass"))


def _sampled(value: Any, most: int) -> Any:
    kind = type(value)
    if isinstance(value, Memory):
        return _sampled(value.view, most)
    if isinstance(value, torch.Tensor | np.ndarray):
        try:
            size = math.prod(value.shape)
            indices = [np.unravel_index(index, value.shape) for index in spread(size, most)]
            return str(value.dtype), tuple(value.shape), [str(value[tuple(map(int, index))]) for index in indices]
        except Exception:  # sparse ones, say
            return kind.__name__, tuple(value.shape)
    if isinstance(value, list | tuple | deque | SharedList | array.array):
        name = "list" if kind is SharedList else kind.__name__
        return name, len(value), [_sampled(value[index], 4) for index in spread(len(value), most)]
    if kind in _TEXTS:
        return kind.__name__, len(value), [value[index : index + 16] for index in spread(len(value), most)]
    if isinstance(value, dict):
        return kind.__name__, len(value), [_sampled(item, 4) for item in itertools.islice(value.items(), most)]
    if isinstance(value, set | frozenset):
        return kind.__name__, len(value)
    return value if kind in _ATOMS else kind.__name__


def spread(length: int, most: int) -> list[int]:
    """At most ``most`` positions, spread evenly, with the first and the last."""
    if length <= most:
        return list(range(length))
    return [index * (length - 1) // (most - 1) for index in range(most)]
