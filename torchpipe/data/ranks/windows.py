"""From the order of an epoch to windows of it, and from their plans to the batches of a rank. In the user's process.

A window is a run of steps whose samples exchange places; the first begins where the share does, and the last one has
what whole steps are left. A step that is not whole, at the end of the epoch, has its samples in turn, as without a
plan. A position is where the window begins, and how many steps from there are done.

The samples of an order in the batches of a rank, without a plan: in turn. Pure; in the user's process.

The windows in the state of an order, and the position that it leads to. Runs in the user's process.

A window is planned from where it begins: a state within one says that, and how many of its steps are done, and is of
use with the same costs, window, row, and number of samples in a step alone. The number of ranks is none of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torchpipe.data.order.samplers import MOST_SEED
from torchpipe.data.order.sampling import OrderState
from torchpipe.data.ranks.balance import Costs, Integers, samples_of_ranks, steps_of
from torchpipe.errors import StateMismatchError
from torchpipe.node.iterator import stored_count
from torchpipe.state.flat import damaged, shown
from torchpipe.stats.model import BalanceStats, CostStats

if TYPE_CHECKING:
    from torchpipe.data.ranks.batches import RankedSampler

__all__ = [
    "ResumePoint",
    "Share",
    "Windows",
    "check_planned",
    "check_run",
    "kept_of_run",
    "planned_state",
    "resumed_at",
]


@dataclass(frozen=True, kw_only=True)
class Share:
    """The samples in the batches of a rank, ``before`` samples into the order."""

    length: int
    size: int
    rank: int
    ranks: int
    drop_last: bool
    uneven: str
    before: int = 0

    @property
    def whole(self) -> int:
        """The samples of a step of all ranks."""
        return self.size * self.ranks

    @property
    def batches(self) -> int:
        """The batches that are left, of all ranks."""
        left = max(0, self.length - self.before)
        return left // self.size if self.drop_last else -(-left // self.size)

    @property
    def steps(self) -> int:
        """The number of steps that each rank takes."""
        return -(-self.batches // self.ranks) if self.uneven == "pad" else self.batches // self.ranks

    def taken(self, step: int) -> int:
        """The step whose batch this rank has in ``step``: a pad is that of the step before."""
        return step - (step * self.ranks + self.rank >= self.batches)

    def start(self, step: int) -> int:
        """The position in the order at which this rank's batch begins.

        A pad is its batch of the step before, which may have been before a stop; in an epoch's first step, rank 0's.
        """
        start = self.before + (self.taken(step) * self.ranks + self.rank) * self.size
        return start if start >= 0 else self.before

    def positions(self, step: int) -> range:
        start = self.start(step)
        return range(start, min(start + self.size, self.length))

    def after(self, steps: int) -> int:
        """The number of samples of the order that are behind all ranks after ``steps``."""
        return min(self.length, self.before + min(self.batches, steps * self.ranks) * self.size)


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
            self._held = step, samples[samples_of_ranks(costs[samples], self._share.ranks)]
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


_PLAN = 2  # another number whenever the same costs lead to another plan
_MOST = (1 << 62) - 1


def kept_of_run(sampler: RankedSampler, seed: int) -> dict[str, Any]:
    """The values that all epochs of a run share: in every state, within an epoch and between two. No ``balance`` where
    nothing is planned, or the plan is a shadow.
    """
    ours = _identity(sampler)
    return {"seed": seed, **({"balance": ours | {"row": sampler.row}} if ours else {})}


def planned_state(sampler: RankedSampler, seed: int, share: Share, arranged: Share | Windows, steps: int) -> OrderState:
    """:func:`kept_of_run`, and where the windows stand after ``steps`` of ``share``."""
    kept = kept_of_run(sampler, seed)
    if isinstance(arranged, Windows) and "balance" in kept:
        begin, done, has = arranged.position(steps)
        kept["balance"] |= {"begin": begin, "done": done, "has": has, "step": share.whole}
    return kept


def check_run(sampler: RankedSampler, state: dict[str, Any]) -> None:
    """Raises: StateMismatchError where :func:`kept_of_run` was that of other windows; StateError if it is damaged."""
    stored_count(state, "seed", MOST_SEED)
    ours, saved = _identity(sampler), state.get("balance")
    if saved is None or not ours:
        if saved is not None or ours:
            with_it, here = ("without", "with") if ours else ("with", "without")
            raise StateMismatchError(
                f"the state was saved {with_it} balance=, and this loader is {here} it (shadow=True counts as "
                "without): samples have other places in the order. Make the loader as it was, or begin a new run"
            )
        return
    if not isinstance(saved, dict):
        raise damaged(f"its windows are {shown(saved)}")
    different = [name for name, value in ours.items() if value is not None and saved.get(name) != value]
    if different:
        names = {"costs": "the costs of samples", "plan": "the version of the plan"}
        told = ", ".join(f"{names.get(name, name)} {shown(saved.get(name))}, here {ours[name]!r}" for name in different)
        raise StateMismatchError(
            f"the state was saved with another balance=: {told}. Its windows would have other samples: make "
            "the loader as it was when the state was saved, with costs that do not change, or begin a new run"
        )
    if not _count(saved, "row"):
        raise damaged("its windows are planned for rows of no samples")


def check_planned(sampler: RankedSampler, state: OrderState) -> None:
    """Raises: as :func:`check_run`, also for where the windows stand."""
    check_run(sampler, state)
    saved = state.get("balance")
    if saved is None:
        return
    length = len(sampler.dataset)  # type: ignore[arg-type]
    begin, done, has, step = (_count(saved, name) for name in ("begin", "done", "has", "step"))
    if not step or begin > state["samples"] or min(length, begin + done * step) < state["samples"]:
        raise damaged(f"{done} steps of a window that begins at {begin} do not lead to {state['samples']}")
    ours_step = sampler.share().whole
    if 0 < done < has and step != ours_step:
        raise StateMismatchError(
            f"the state is {done} steps into a window of {has}, which have {step} samples each, of all ranks together; "
            f"here a step has {ours_step} ({sampler.num_replicas} ranks, batch_size={sampler.batch_size}). Choose "
            f"batch_size so that ranks * batch_size is {step}, or load a state from between two windows"
        )


class ResumePoint(NamedTuple):
    """A share begins ``begin`` samples into the order; so many of its steps are ``done``."""

    begin: int
    done: int


def resumed_at(sampler: RankedSampler, order: OrderState | None) -> ResumePoint:
    """The position that a state's ``order`` leads to; of None, the start of an epoch."""
    if order is None:
        return ResumePoint(0, 0)
    saved: dict[str, Any] | None = order.get("balance")
    if saved is not None and saved["step"] == sampler.share().whole:
        return ResumePoint(saved["begin"], saved["done"])
    return ResumePoint(order["samples"], 0)


def _count(saved: dict[str, Any], name: str) -> int:
    """The number of steps, or of samples in one, whatever the size of the dataset."""
    return stored_count(saved, name, _MOST)


def _identity(sampler: RankedSampler) -> dict[str, Any]:
    balance, costs = sampler.balance, sampler.costs
    if balance is None or costs is None or balance.shadow:
        return {}
    return {"plan": _PLAN, "window": balance.window, "row": balance.row, "costs": costs.digest}
