"""What an epoch's order takes over from the epoch before: generators, samplers' own states, what is left over.

Runs in the user's process. It is what a state holds where no epoch is under way.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import RandomSampler, SequentialSampler

from torchpipe.data.order.rollover import RolloverBatchSampler
from torchpipe.errors import StateError, StateMismatchError
from torchpipe.node.iterator import is_stateful, stored_count
from torchpipe.state.flat import damaged, shown

if TYPE_CHECKING:
    from torchpipe.data.loader import DataLoader

__all__ = [
    "MOST_SEED",
    "chain_of",
    "check_carried",
    "check_generators",
    "check_standing",
    "forget",
    "generators_of",
    "length_of",
    "load_into",
    "own_state",
    "place_of",
    "restore",
    "standing",
    "tell_epochs",
]

MOST_SEED = (1 << 63) - 1


def chain_of(sampler: Any) -> list[Any]:
    """The sampler, and those inside it: a batch sampler has one in ``sampler``."""
    chain = [sampler]
    while (inner := getattr(chain[-1], "sampler", None)) is not None and not any(inner is part for part in chain):
        chain.append(inner)
    return chain


def generators_of(chain: Iterable[Any], generator: torch.Generator | None) -> list[torch.Generator]:
    """The loader's generator and the samplers', each once."""
    found = [generator, *(getattr(part, "generator", None) for part in chain)]
    return list({id(item): item for item in found if isinstance(item, torch.Generator)}.values())


def place_of(chain: list[Any]) -> tuple[int, int]:
    """(how many ranks a sampler divides among, which one this is)."""
    for part in chain:
        ranks, rank = getattr(part, "num_replicas", None), getattr(part, "rank", None)
        if type(ranks) is type(rank) is int and 0 <= rank < ranks:
            return ranks, rank
    return 1, 0


def tell_epochs(chain: Iterable[Any], epochs: Iterable[Any]) -> None:
    """Each sampler its epoch, where it has one."""
    for part, epoch in zip(chain, epochs):
        if type(epoch) is int and part.epoch != epoch:
            part.set_epoch(epoch) if hasattr(part, "set_epoch") else setattr(part, "epoch", epoch)


def length_of(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except Exception:  # it has none, or one that fails in any way: it is only asked for what it may tell
        return None


def own_state(chain: Iterable[Any]) -> Any:
    """The first of the samplers that keeps a state itself, or None."""
    return next((part for part in chain if is_stateful(part)), None)


def standing(loader: DataLoader[Any], *, begun: bool) -> dict[str, Any]:
    """Plain data. ``begun``: has an epoch been iterated? Before that, a sampler is as its maker left it."""
    sampler = loader._index_sampler
    chain = chain_of(sampler)
    if loader._ranked is not None:
        return {"seed": loader._ranked.foretell(loader._draws)}
    state: dict[str, Any] = {"generators": [item.get_state() for item in generators_of(chain, loader.generator)]}
    if isinstance(sampler, RolloverBatchSampler):
        state["carried"] = list(sampler.carried)
    if loader.persistent_workers and loader._base_seed is not None:
        state["base_seed"] = loader._base_seed  # torch's loader draws no other for them
    owner, dataset = own_state(chain), _dataset_with_state(loader)
    if begun and owner is not None:
        state["sampler"] = copy.deepcopy(owner.state_dict())
    if begun and dataset is not None:
        state["dataset"] = copy.deepcopy(dataset.state_dict())
    return state


def restore(loader: DataLoader[Any], order: dict[str, Any] | None, state: dict[str, Any] | None) -> None:
    """Let the next epoch take over what :func:`check_standing` has looked at. ``order``: of one that is under way."""
    sampler = loader._index_sampler
    if order is not None and isinstance(sampler, RolloverBatchSampler):
        sampler.carried = list(order["start"]["carried"])  # now: the length counts it
    if order is not None or state is None:
        return
    if loader._ranked is not None:
        loader._ranked.run_seed = state["seed"]
        return
    chain = chain_of(sampler)
    owner, dataset = own_state(chain), _dataset_with_state(loader)
    if owner is not None and "sampler" in state:
        load_into(owner, state["sampler"])
        loader._sampler_loaded = True
    if dataset is not None and "dataset" in state:
        load_into(dataset, state["dataset"])
    for item, saved in zip(generators_of(chain, loader.generator), state["generators"]):
        item.set_state(saved)
    if isinstance(sampler, RolloverBatchSampler):
        sampler.carried = list(state["carried"])
    loader._base_seed = state.get("base_seed")


def forget(loader: DataLoader[Any]) -> None:
    """Let the next epoch take over nothing."""
    loader._base_seed, loader._sampler_loaded = None, False
    if isinstance(loader._index_sampler, RolloverBatchSampler):
        loader._index_sampler.carried = []


def _dataset_with_state(loader: DataLoader[Any]) -> Any:
    """The dataset, if it is read in this process and keeps a state."""
    here = loader.num_workers == 0 and not loader._is_iterable
    return loader.dataset if here and is_stateful(loader.dataset) else None


def load_into(owner: Any, value: Any) -> None:
    """``owner.load_state_dict(value)``. Raises: StateError for what the sampler does not take."""
    try:
        owner.load_state_dict(copy.deepcopy(value))
    except Exception as error:
        raise StateError(
            f"{type(owner).__name__}.load_state_dict() does not take what the state has for it: {error!r:.200}"
        ) from error


def check_standing(sampler: Any, generator: torch.Generator | None, state: Any, *, ranked: bool = False) -> None:
    """Raises: StateError for what is no such state, StateMismatchError for that of another sampler."""
    if not isinstance(state, dict):
        raise damaged("it does not say what is kept between epochs")
    if ranked:
        if "seed" not in state:
            raise damaged("it has no seed for the epochs of all ranks")
        stored_count(state, "seed", MOST_SEED)
        return
    chain = chain_of(sampler)
    check_generators(state.get("generators"), generators_of(chain, generator))
    check_carried(sampler, state)
    if "base_seed" in state:
        stored_count(state, "base_seed", MOST_SEED)


def check_carried(sampler: Any, state: dict[str, Any]) -> None:
    rolls = isinstance(sampler, RolloverBatchSampler)
    if rolls != ("carried" in state):
        saved, here = ("other" if rolls else "'rollover'"), ("'rollover'" if rolls else "other")
        raise StateMismatchError(f"last_batch: the state was saved with {saved}, this loader has {here}")
    if rolls and (type(state["carried"]) is not list or len(state["carried"]) >= sampler.batch_size):
        raise damaged(f"what is left over is {shown(state['carried'])}, and not less than a batch of indices")
    if rolls and type(sampler.sampler) in (SequentialSampler, RandomSampler):  # others may give keys of any kind
        length = len(sampler.sampler.data_source)
        if not all(type(index) is int and 0 <= index < length for index in state["carried"]):
            raise damaged(f"what is left over is {shown(state['carried'])}, and not of {length} samples")


def check_generators(saved: Any, here: list[torch.Generator]) -> None:
    """Raises: as above, unless ``saved`` are states for ``here``."""
    if type(saved) is not list:
        raise damaged(f"the states of generators are {shown(saved)}")
    if len(saved) != len(here):
        raise StateMismatchError(
            f"the state has {len(saved)} generators of samplers, this loader has {len(here)}: give generator= as the "
            "loader that saved it had it"
        )
    for item, state in zip(here, saved):
        try:
            torch.Generator(item.device).set_state(state)
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise damaged(f"the state of a generator cannot be used: {error!s:.200}") from None
