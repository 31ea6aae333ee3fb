"""One state for all ranks: trainers save that of rank 0 and hand it to every rank. Runs in the user's process."""

from __future__ import annotations

import warnings
from typing import Any

import torch.distributed as dist

from torchpipe.data.order.samplers import parts_of, place_of
from torchpipe.errors import StateMismatchError
from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.state.ranks import merge

__all__ = ["own_part", "own_state", "shared", "warn_undivided"]

_RANKS = "ranks"


def warn_undivided(loader: Any) -> None:
    """Say so where there are several ranks and nothing divides the data among them."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return
    if isinstance(loader, DataLoader2):
        divided = loader.reading_service.world_size > 1
    else:
        chain = [loader.dataset, *parts_of(loader.sampler), *parts_of(loader.batch_sampler)]
        divided = place_of(chain)[0] > 1 or any(hasattr(part, "rank") for part in chain)
    if not divided:
        warnings.warn(
            f"there are {dist.get_world_size()} ranks, and each has all the data: give a DataLoader a sampler that "
            "divides (torch.utils.data.DistributedSampler), a DataLoader2 a DistributedReadingService",
            stacklevel=4,
        )


def own_state(loader: Any) -> dict[str, Any]:
    """This rank's state, without asking another."""
    state: dict[str, Any] = loader.state_dict("own") if isinstance(loader, DataLoader2) else loader.state_dict()
    return state


def shared(loader: Any, state: dict[str, Any]) -> dict[str, Any]:
    """``state``, which this rank's ``loader`` has, in a form that every rank can load. All ranks call it, or none.

    A DataLoader's position is a count of batches, the same on all ranks: no rank asks another. The states of a
    DataLoader2 are joined into one, which is free of ranks; where that cannot be (a graph that divides among ranks
    apart from shards, or ranks that have not agreed on a seed yet), the states of all ranks stand side by side.
    """
    if not isinstance(loader, DataLoader2) or loader.reading_service.world_size == 1:
        return state
    states = loader.reading_service.gather(state)
    try:
        return merge(states)
    except StateMismatchError:
        return {_RANKS: states}


def own_part(loader: Any, state: dict[str, Any]) -> dict[str, Any]:
    """What of a shared state is this rank's. Raises: StateMismatchError for as many ranks as there are not."""
    if set(state) != {_RANKS}:
        return state
    states = state[_RANKS]
    service = loader.reading_service
    if len(states) != service.world_size:
        raise StateMismatchError(
            f"the state is that of {len(states)} ranks, side by side, and this run has {service.world_size}: resume on "
            "as many. States that any number of ranks can load are those of a graph that divides among all shards alike"
        )
    own: dict[str, Any] = states[service.rank]
    return own
