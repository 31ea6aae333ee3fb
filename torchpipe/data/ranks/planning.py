"""The step, and the rank, of each sample of a window. Pure functions over integers, alike on every machine.

Runs in the user's process. Imports numpy alone, and of it only exact operations: ties go by ordinal, the place of a
sample in its window.

An example: a window of two steps for two ranks, of two samples each, with these costs:

    ordinal    0   1   2   3   4   5   6   7
    cost      90  10  20  80  30  70  40  60        400 in all: 200 a step, 100 a rank

Without a plan, the ranks have 90 + 10 and 20 + 80, then 30 + 70 and 40 + 60: that is even already. In the order
90, 80, 70, 60, 40, 30, 20, 10 they have 170 and 130, then 70 and 30, so that steps take 170 + 70 = 240 where
400 / 2 = 200 would do. The plan for that order:

1. Steps (:func:`steps_of`). The longest costs no more than a row of two samples does on average, 90 <= 2 * 50. All
   are shared out from the longest on, there and back: {90, 60, 40, 10} and {80, 70, 30, 20}. Both have 200, and can be
   divided evenly.
2. Ranks (:func:`ranks_of`). Longest first, each to the rank that has least: 90 and 60, then 40 to the 60 and 10 to the
   90, which makes 100 and 100; and 80 + 20, 70 + 30. Steps take 100 + 100 = 200.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Integers", "plan", "ranks_of", "steps_of"]

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
    return np.stack([step[ranks_of(costs[step], ranks)] for step in chosen])


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
    slowest = step[ranks_of(step, rows)].sum(axis=1).max(axis=0)
    return int(slowest.sum()) * rows * _EVEN <= (_EVEN + 1) * int(costs[:, 0].sum())


def ranks_of(costs: Integers, ranks: int) -> Integers:
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
