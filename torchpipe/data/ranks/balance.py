"""``Balance``: what samples cost, and the step and the rank that each sample of a window gets by it.

Runs in the user's process.

Costs are integers that all ranks have alike. The plan is made by pure functions over these, of exact operations: ties
go by ordinal, the place of a sample in its window.

An example: a window of two steps for two ranks, of two samples each, with these costs:

    ordinal    0   1   2   3   4   5   6   7
    cost      90  10  20  80  30  70  40  60        400 in all: 200 a step, 100 a rank

Without a plan, the ranks have 90 + 10 and 20 + 80, then 30 + 70 and 40 + 60: that is even already. In the order 90, 80,
70, 60, 40, 30, 20, 10 they have 170 and 130, then 70 and 30, so that steps take 170 + 70 = 240 where 400 / 2 = 200
would do. The plan for that order:

1. Steps (:func:`steps_of`). The longest costs no more than a row of two samples does on average, 90 <= 2 * 50. All
   are shared out from the longest on, there and back: {90, 60, 40, 10} and {80, 70, 30, 20}. Both have 200, and can be
   divided evenly.
2. Ranks. Longest first, each to the rank that has least: 90 and 60, then 40 to the 60 and 10 to the 90, which makes
   100 and 100; and 80 + 20, 70 + 30. Steps take 100 + 100 = 200.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torchpipe.node.validate import check_count
from torchpipe.randomness.global_random import RandomStates

__all__ = ["Balance", "Cost", "Costs", "Integers", "plan", "samples_of_ranks", "steps_of"]

Integers: TypeAlias = npt.NDArray[np.int64]

_ROUNDS = 16  # of swaps, for each part
_OFFERED = 32  # samples of a rank, in each round
_EVEN = 32  # one part in so many over the mean is even enough to leave steps alike
_CLOSE = 1000  # one part in so many over what cannot be undercut is close enough


def plan(costs: Integers, steps: int, ranks: int, row: int) -> Integers:
    """The plan of a window: ordinals (steps, ranks, samples of a rank), each ordinal once.

    ``costs`` (samples, parts): of each sample, in the window's order, not negative; their sum fits into 63 bits. The
    number of samples is a multiple of ``steps * ranks``. Which samples a step has does not depend on ``ranks``.
    """
    chosen = steps_of(costs, steps, row)
    return np.stack([step[samples_of_ranks(costs[step], ranks)] for step in chosen])


def steps_of(costs: Integers, steps: int, row: int) -> Integers:
    """The samples of each step: ordinals (steps, samples of a step), in the window's order.

    All steps have as many long samples as the others, if ranks of ``row`` samples can be even then. They cannot where a
    step has samples that cost more than ``row`` do on average, for a step takes as long as its longest sample: then the
    longest of the window share a step, beside which they are not long, and what is left is looked at anew.
    """
    size = len(costs) // steps
    order = np.argsort(-costs.sum(axis=1), kind="stable")
    chosen: list[Integers] = []
    while steps > len(chosen):
        shared_out = order.reshape(size, steps - len(chosen))
        shared_out[1::2] = shared_out[1::2, ::-1].copy()  # there and back
        if len(shared_out.T) == 1 or _is_even(costs[shared_out], max(1, size // row)):
            chosen += list(shared_out.T)
            break
        shared_out[1::2] = shared_out[1::2, ::-1].copy()
        chosen.append(order[:size])
        order = order[size:]
    # A step comes where its longest sample stands: in an order of its own, if the window's is random
    chosen.sort(key=lambda step: int(step[0]))
    return np.sort(np.stack(chosen), axis=1)


def _is_even(costs: Integers, rows: int) -> bool:
    """Can ``rows`` ranks divide steps like the first one of ``costs`` (samples of a step, steps, parts) evenly?"""
    whole = costs.sum(axis=(0, 1)).tolist()
    most = _EVEN * rows * costs.shape[1], (_EVEN + 1) * sum(whole)
    longest = costs.max(axis=(0, 1)).tolist()
    if sum(max(long * most[0], total * _EVEN) for long, total in zip(longest, whole)) > most[1]:
        return False  # whatever the division
    step = costs[: len(costs) // rows * rows, 0]  # the longest come first: it is some of the shortest that are left out
    slowest = step[samples_of_ranks(step, rows)].sum(axis=1).max(axis=0)
    return int(slowest.sum()) * rows * _EVEN <= (_EVEN + 1) * int(costs[:, 0].sum())


def samples_of_ranks(costs: Integers, ranks: int) -> Integers:
    """The samples of a step for each rank: ordinals (ranks, samples of a rank), as many for all.

    Longest first, each to the rank that has least so far; then swaps, while they lower what the slowest rank has, of
    one part in turn without raising that of another. Ranks are in the order of their first samples.
    """
    held = _longest_first(costs.sum(axis=1), ranks)
    if ranks > 1:
        _swap(costs, held)
    held.sort(axis=1)
    return held[np.argsort(held[:, 0], kind="stable")]


def _longest_first(costs: Integers, ranks: int) -> Integers:
    """A sample for each rank in each round: the longest of the round to the rank that has least."""
    rounds = np.argsort(-costs, kind="stable").reshape(-1, ranks)
    held, loads = np.empty_like(rounds.T, order="C"), np.zeros(ranks, np.int64)
    for number, samples in enumerate(rounds):
        least_first = np.argsort(loads, kind="stable")
        held[least_first, number] = samples
        loads[least_first] += costs[samples]
    return held


def _swap(costs: Integers, held: Integers) -> None:
    """Exchange samples of ``held`` (ranks, samples of a rank) in pairs of ranks, as long as that helps."""
    ranks, size = held.shape
    loads = costs[held].sum(axis=1)
    fewest = np.sort(costs, axis=0)[: size - 1].sum(axis=0)
    least = np.maximum(-(-loads.sum(axis=0) // ranks), costs.max(axis=0) + fewest)  # no division is below
    parts = costs.shape[1]
    helped = [True] * parts
    for number in range(_ROUNDS * parts):
        part = number % parts
        if not any(helped):
            return
        peaks = loads.max(axis=0)
        if (int(peaks[part]) - int(least[part])) * _CLOSE <= int(least[part]):
            helped[part] = False
            continue
        order = np.argsort(-loads[:, part], kind="stable")
        half = ranks // 2
        turn = number // parts
        helped[part] = bool(_swap_in_pairs(costs, held, loads, part, order[:half], order[::-1][:half], turn)[0])
        if not helped[part]:  # the slowest with the first other one that takes something off it
            others = order[:0:-1]
            slowest = np.broadcast_to(order[:1], others.shape)
            helped[part] = bool(_swap_in_pairs(costs, held, loads, part, slowest, others, turn, one=True).any())


def _swap_in_pairs(
    costs: Integers, held: Integers, loads: Integers, part: int, high: Any, low: Any, turn: int, *, one: bool = False
) -> npt.NDArray[np.bool_]:
    """In each pair of ranks, the exchange that leaves the least to the one that has more; which pairs did.

    With ``one``, only in the pair where that is least. In each ``turn`` ranks offer at most _OFFERED samples, others
    than in the turn before where they have more: so the work grows with the samples, and not with their square.
    """
    stride = -(-held.shape[1] // _OFFERED)
    offered = held[:, turn % stride :: stride]
    size = offered.shape[1]
    ours, theirs = costs[offered[high]], costs[offered[low]]
    less = ours[:, :, None] - theirs[:, None]  # (pairs, sample of high, sample of low, parts)
    ours, theirs = loads[high][:, None, None] - less, loads[low][:, None, None] + less
    more = np.maximum(ours[..., part], theirs[..., part])
    if loads.shape[1] > 1:
        peaks = loads.max(axis=0)
        worse = np.maximum(ours, theirs) > peaks
        more = np.where(worse.any(axis=-1), np.iinfo(np.int64).max, more)
    more = more.reshape(len(more), -1)
    best = more.argmin(axis=1)
    pairs = np.arange(len(more))
    helps: npt.NDArray[np.bool_] = more[pairs, best] < loads[high, part]
    if one:
        first = int(more[pairs, best].argmin())
        helps &= pairs == first
    ours_at, theirs_at = np.divmod(best[helps], size)
    difference = less[pairs[helps], ours_at, theirs_at]
    ours_at, theirs_at = (turn % stride + at * stride for at in (ours_at, theirs_at))
    high, low = high[helps], low[helps]
    loads[high] -= difference
    loads[low] += difference
    moved = held[high, ours_at]
    held[high, ours_at] = held[low, theirs_at]
    held[low, theirs_at] = moved
    return helps


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
