"""``Balance``: what samples cost, as users give it, and as integers that all ranks have alike.

Runs in the user's process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from torchpipe.data.ranks.planning import Integers
from torchpipe.node.validate import check_count
from torchpipe.randomness.global_random import RandomStates

__all__ = ["Balance", "Cost", "Costs"]

Cost: TypeAlias = "Callable[[int], int] | Any"
"""What each sample costs: whole numbers by index (array, tensor, list, column), or a function of the index."""


class Balance:
    """For ``DataLoader(..., distributed=Ranks(balance=Balance(cost)))``: samples change places within ``window`` steps,
    so that the ranks of a step are equally busy.

    ``cost``: of each sample, a whole number, not negative, known before it is read: an array, tensor, list or column
    of as many as the dataset has, or a function of the index, which is asked once for each when the loader is made.
    Lengths in tokens, their squares where attention is what takes the time. A dict has several parts that take time
    after one another, ``{"text": lengths**2, "image": patches}``: the sum of what each part takes on its slowest rank
    is made small.

    Each rank plans for itself, alike, and reads its own samples alone. Which samples a step has depends on the costs,
    the window, ``row`` and the number of samples that all ranks together have in a step, not on the number of ranks.
    ``row``: planned for ranks that have so many samples in a step, or more; None: ``batch_size``, when the run begins.
    With ``shadow`` nothing changes: ``loader.stats().balance`` says what a plan would give.

    Arrays are copied. Raises: TypeError and ValueError for costs that are no whole numbers, or negative.
    """

    def __init__(
        self, cost: Cost | Mapping[str, Cost], window: int = 8, *, row: int | None = None, shadow: bool = False
    ):
        self.window = check_count("window", window, at_least=1)
        self.row = None if row is None else check_count("row", row, at_least=1)
        if type(shadow) is not bool:
            raise TypeError(f"shadow={shadow!r:.40} must be True or False")
        self.shadow = shadow
        parts = dict(cost) if isinstance(cost, Mapping) else {"cost": cost}
        if not parts or not all(type(name) is str for name in parts):
            raise ValueError(f"a dict of costs has a name for each part, got {list(parts)!r:.100}")
        self._parts = {name: part if callable(part) else _column(name, part) for name, part in parts.items()}

    def costs(self, length: int) -> Costs:
        """The costs of ``length`` samples. Raises: ValueError for another number, and the errors of functions."""
        columns = []
        outside = RandomStates.now()
        try:
            asked = {
                name: part if isinstance(part, np.ndarray) else _asked(name, part, length)
                for name, part in self._parts.items()
            }
        finally:
            outside.put()  # a function may draw: what the run draws next is not to depend on its costs
        for name, column in asked.items():
            if len(column) != length:
                raise ValueError(
                    f"the cost {name!r} has {len(column)} numbers, and the dataset {length} samples: give one for each "
                    "index of the dataset"
                )
            columns.append(column)
        table = np.stack(columns, axis=1)
        table.flags.writeable = False
        digest = hashlib.sha256(repr((table.shape, list(self._parts))).encode())
        digest.update(table.astype("<i8", copy=False).tobytes())
        return Costs(names=tuple(self._parts), table=table, digest=digest.hexdigest()[:32])

    def __repr__(self) -> str:
        return f"Balance({', '.join(self._parts)}; window={self.window}, row={self.row}, shadow={self.shadow})"


@dataclass(frozen=True, kw_only=True, eq=False)
class Costs:
    """By index: ``table`` (samples, parts), read-only."""

    names: tuple[str, ...]
    table: Integers
    digest: str

    def check_window(self, samples: int) -> None:
        """Raises: ValueError if those of a window might not add up in 64 bits."""
        most = int(self.table.max(initial=0))
        if most * samples * len(self.names) >= 1 << 63:
            raise ValueError(
                f"a cost of {most} is too much: a window has {samples} samples, and their sum has to fit into 64 bits. "
                "Divide all costs by the same number"
            )

    def __deepcopy__(self, memo: Any) -> Costs:
        return self  # nothing in it changes


def _column(name: str, given: Any) -> Integers:
    if isinstance(given, np.ma.MaskedArray):
        raise TypeError(f"the cost {name!r} is a masked array: fill in what is masked")
    if isinstance(given, torch.Tensor):
        given = given.detach().cpu().numpy()
    if not isinstance(given, Sized) or isinstance(given, str | bytes) or not hasattr(given, "__getitem__"):
        raise TypeError(
            f"the cost {name!r} is {given!r:.80} of type {type(given).__name__}: give whole numbers by index, as an "
            "array, tensor, list or column, or a function of the index. Costs have to be known before samples are "
            "read: lengths that only reading tells are not exchanged between ranks, so write them into a column first"
        )
    if not isinstance(given, list | tuple) and not hasattr(given, "__array__"):
        column: Any = given
        given = [column[index] for index in range(len(column))]  # which numpy would ask until an IndexError comes
    found = np.asarray(given)
    if found.ndim != 1:
        raise ValueError(f"the cost {name!r} has shape {found.shape}: give one number for each sample")
    if not len(found):
        found = found.astype(np.int64)
    if found.dtype.kind not in "iu":
        raise TypeError(
            f"the cost {name!r} has numbers of type {found.dtype}, of which ranks might make other sums: give whole "
            "ones, rounded, np.rint(cost).astype(np.int64), in units that are small enough"
        )
    return _checked(name, found)


def _asked(name: str, function: Callable[[int], Any], length: int) -> Integers:
    """The values of ``function`` for each index, in their order."""
    values = []
    for index in range(length):
        try:
            value = function(index)
        except Exception as error:
            note = f"torchpipe: raised by the cost {name!r} of sample {index}"
            if isinstance(error, StopIteration):  # which would end a loop of the caller's in silence
                raise RuntimeError(f"the cost {name!r} raised StopIteration for sample {index}") from error
            error.add_note(note)
            raise
        if isinstance(value, torch.Tensor) and not value.ndim and value.dtype != torch.bool:
            value = value.item()
        if type(value) is bool or not isinstance(value, int | np.integer):
            raise TypeError(
                f"the cost {name!r} of sample {index} is {value!r:.80} of type {type(value).__name__}: a whole number "
                "is needed, since ranks might make other sums of any other kind. For several parts give a dict of "
                "functions"
            )
        if not 0 <= value < 1 << 63:
            raise ValueError(f"the cost {name!r} of sample {index} is {value}: it must be from 0 to 2**63 - 1")
        values.append(int(value))
    return np.array(values, np.int64)


def _checked(name: str, found: Any) -> Integers:
    if len(found):
        least, most = int(found.min()), int(found.max())
        if least < 0 or most >= 1 << 63:
            at = int(found.argmin() if least < 0 else found.argmax())
            raise ValueError(f"the cost {name!r} of sample {at} is {found[at]}: it must be from 0 to 2**63 - 1")
    column: Integers = np.array(found, np.int64)
    return column
