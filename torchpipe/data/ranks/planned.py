"""The windows in the state of an order, and the position that it leads to. Runs in the user's process.

A window is planned from where it begins: a state within one says that, and how many of its steps are done, and is of
use with the same costs, window, row, and number of samples in a step alone. The number of ranks is none of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torchpipe.data.order.samplers import MOST_SEED
from torchpipe.data.order.sampling import OrderState
from torchpipe.data.ranks.share import Share
from torchpipe.data.ranks.windows import Windows
from torchpipe.errors import StateMismatchError
from torchpipe.node.iterator import stored_count
from torchpipe.state.flat import damaged, shown

if TYPE_CHECKING:
    from torchpipe.data.ranks.batches import RankedSampler

__all__ = ["ResumePoint", "check_planned", "check_run", "kept_of_run", "planned_state", "resumed_at"]

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
