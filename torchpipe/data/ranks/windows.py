"""From the order of an epoch to windows of it, and from their plans to the batches of a rank. In the user's process.

A window is a run of steps whose samples exchange places; the first begins where the share does, and the last one has
what whole steps are left. A step that is not whole, at the end of the epoch, has its samples in turn, as without a
plan. A position is where the window begins, and how many steps from there are done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchpipe.data.ranks.balance import Costs
from torchpipe.data.ranks.planning import Integers, ranks_of, steps_of
from torchpipe.data.ranks.share import Share
from torchpipe.stats.model import BalanceStats, CostStats

__all__ = ["Windows"]


@dataclass(frozen=True)
class _Sums:
    """The sums over the steps that were planned. Replaced as a whole: another thread may look."""

    steps: int
    slowest: tuple[int, int]  # of their slowest ranks, without and with a plan
    ranks: tuple[Any, Any]  # what each has had, (ranks, parts), without and with: Python's integers, of any size


class Windows:
    """The batches of a rank in windows of ``window`` steps of ``share``, by the costs of the samples.

    ``indices``: gives those of the epoch, once. With ``shadow``, only :meth:`stats` says something of plans.
    """

    def __init__(
        self, share: Share, costs: Costs, window: int, row: int, indices: Callable[[], Any], *, shadow: bool
    ) -> None:
        self._share = share
        self._costs = costs
        self._window = window
        self._row = row
        self._indices = indices
        self._shadow = shadow
        self._whole_steps = max(0, share.length - share.before) // share.whole
        self._chosen: tuple[int, Integers, Integers] | None = None  # a window's number, its costs, its steps
        self._held: tuple[int, Integers] | None = None  # a step, and which samples of its window each rank has
        nothing = np.zeros((share.ranks, len(costs.names)), object)
        self._next = 0  # the first step that is not in the sums
        self._sums = _Sums(0, (0, 0), (nothing, nothing))

    def positions(self, step: int) -> Sequence[int]:
        """The positions in the order of the samples of this rank's batch."""
        share = self._share
        taken = share.taken(step)
        if not 0 <= taken < self._whole_steps:
            return share.positions(step)
        held = self._of_ranks(taken)
        if taken == step:
            self._count(step, held)
        if self._shadow:
            return share.positions(step)
        begin = share.before + taken // self._window * self._window * share.whole
        positions: list[int] = (begin + held[share.rank]).tolist()
        return positions

    def position(self, steps: int) -> tuple[int, int, int]:
        """After so many steps: where the window at work begins, how many of its steps are done, how many it has.

        The last window is at work until the epoch's end, since a step that is not whole may repeat batches of it.
        """
        last = max(0, self._whole_steps - 1) // self._window
        number = min(steps // self._window, last)
        first = number * self._window
        has = min(self._window, self._whole_steps - first)
        return self._share.before + first * self._share.whole, steps - first, has

    def stats(self) -> BalanceStats:
        sums = self._sums
        # Each over its own mean: until a window ends, its first steps have other samples with a plan than without
        wholes = [int(loads.sum()) for loads in sums.ranks]
        without, planned = (
            slowest * self._share.ranks / whole if whole else 1.0 for slowest, whole in zip(sums.slowest, wholes)
        )
        loads = sums.ranks[not self._shadow].T.tolist()
        return BalanceStats(
            steps=sums.steps,
            shadow=self._shadow,
            slowest_without=without,
            slowest=planned,
            costs=tuple(CostStats(name=name, ranks=tuple(of)) for name, of in zip(self._costs.names, loads)),
        )

    def _of_window(self, number: int) -> tuple[Integers, Integers]:
        """(costs of its samples, which of them each step has)."""
        if self._chosen is None or self._chosen[0] != number:
            share = self._share
            steps = min(self._window, self._whole_steps - number * self._window)
            begin = share.before + number * self._window * share.whole
            indices = self._indices()[begin : begin + steps * share.whole]
            costs = self._costs.table[np.asarray(indices)]
            self._chosen = number, costs, steps_of(costs, steps, self._row)
        return self._chosen[1:]

    def _of_ranks(self, step: int) -> Integers:
        if self._held is None or self._held[0] != step:
            costs, steps = self._of_window(step // self._window)
            samples = steps[step % self._window]
            self._held = step, samples[ranks_of(costs[samples], self._share.ranks)]
        return self._held[1]

    def _count(self, step: int, held: Integers) -> None:
        if step < self._next:
            return
        self._next = step + 1
        costs, _ = self._of_window(step // self._window)
        first = step % self._window * self._share.whole
        in_turn = np.arange(first, first + self._share.whole).reshape(held.shape)
        without, planned = costs[in_turn].sum(axis=1), costs[held].sum(axis=1)
        sums = self._sums
        slowest = [most + sum(loads.max(axis=0).tolist()) for most, loads in zip(sums.slowest, (without, planned))]
        had = sums.ranks[0] + without.astype(object), sums.ranks[1] + planned.astype(object)
        self._sums = _Sums(sums.steps + 1, (slowest[0], slowest[1]), had)
