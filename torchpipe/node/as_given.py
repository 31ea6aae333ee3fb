"""What objects of the user's hold at a time, put back into the same objects later: for a process that is forked in the
place of a dead one, after the user's process has gone on.

Made in the user's process, put back in the forked one.

Nothing is copied but what containers, attributes, small arrays and random generators hold, of what is near: up to
4,000 kB. What is larger than 1,000 kB is data, and stays as it is; so do modules of torch's, what lies on a device or
in shared memory, and what belongs to the process (files, locks, threads).
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from torchpipe.node.own_copy import ATOMS, MOST_BYTES, Kinds
from torchpipe.randomness.generators import GENERATORS, generator_state, put_generator

__all__ = ["AsGiven"]

_IN_ALL = 4 * MOST_BYTES


class AsGiven:
    """``roots`` as they are when this is made."""

    def __init__(self, *roots: Any) -> None:
        self._noted: list[tuple[Any, Any, dict[str, Any] | None, list[tuple[Any, Any]]]] = []
        kinds, seen, left = Kinds(), set[int](), _IN_ALL
        waiting = deque(roots)
        while waiting and left > 0:
            value = waiting.popleft()
            if type(value) in ATOMS or id(value) in seen or kinds.belongs_elsewhere(value):
                continue
            seen.add(id(value))
            size = value.nbytes if isinstance(value, np.ndarray | torch.Tensor) else sys.getsizeof(value)
            if size > MOST_BYTES:
                continue
            left -= size
            with suppress(Exception):  # objects refuse in many ways
                attributes = getattr(value, "__dict__", None)
                slots = [(member, member.__get__(value)) for name, member in kinds.slots(value) if hasattr(value, name)]
                self._noted.append((value, _held(value), dict(attributes) if attributes else None, slots))
                waiting += [part for _, part in kinds.parts_of(value)]

    def put_back(self) -> None:
        for value, held, attributes, slots in self._noted:
            with suppress(Exception):
                if held is not None:
                    _put(value, held)
                if attributes is not None:
                    own = value.__dict__
                    for name in own.keys() - attributes.keys():
                        del own[name]
                    own.update(attributes)
                for member, part in slots:
                    member.__set__(value, part)


def _held(value: Any) -> Any:
    """What a container, an array or a generator holds; None for other objects."""
    if isinstance(value, list):
        return list.copy(value)
    if isinstance(value, dict):
        return dict(dict.items(value))
    if isinstance(value, set):
        return set.copy(value)
    if isinstance(value, deque):
        return list(deque.__iter__(value))
    if isinstance(value, bytearray | array):
        return value[:]
    if isinstance(value, np.ndarray):
        return value.copy() if value.flags.writeable else None
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return generator_state(value) if isinstance(value, GENERATORS) else None


def _put(value: Any, held: Any) -> None:
    if isinstance(value, list):
        list.__setitem__(value, slice(None), held)
    elif isinstance(value, dict):
        dict.clear(value)
        dict.update(value, held)
    elif isinstance(value, set):
        set.clear(value)
        set.update(value, held)
    elif isinstance(value, deque):
        deque.clear(value)
        deque.extend(value, held)
    elif isinstance(value, bytearray | array):
        value[:] = held
    elif isinstance(value, np.ndarray):
        value[...] = held
    elif isinstance(value, torch.Tensor):
        with torch.no_grad():
            value.copy_(held)
    else:
        put_generator(value, held)
