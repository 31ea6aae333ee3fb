"""States of ranks in trainers' checkpoints. Runs in the user's process.

Trainers that save rank 0's state and hand it to every rank need one for all (:func:`shared`): where ranks' states
differ, they stand side by side. A checkpoint that all ranks write together has keys (:func:`keys_of`): what is the same
on all ranks has one, else each rank, or each shard, has its own, which that rank alone saves.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch.distributed as dist
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

from torchpipe.data.order.samplers import parts_of, ranks_of_sampler
from torchpipe.data.ranks.batches import RankedSampler
from torchpipe.data.ranks.graph import group_of, rank_and_ranks
from torchpipe.errors import RankError, StateError, StateMismatchError
from torchpipe.execution.ranks import DataRanks, Talk, data_ranks
from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import is_stateful
from torchpipe.state import decode, encode, merge
from torchpipe.state.ranks import HostedShards, shard_states

__all__ = [
    "check_position",
    "group_of_position",
    "keys_of",
    "own_part",
    "own_state",
    "shared",
    "state_of_keys",
    "warn_undivided",
]

_COUNTED = (RankedSampler, DistributedSampler, SequentialSampler, BatchSampler)

_RANKS = "ranks"


def _parts_that_divide(loader: Any) -> list[Any]:
    return [loader.dataset, *parts_of(loader.sampler), *parts_of(loader.batch_sampler)]


def group_of_position(rank: int, ranks: int) -> dist.ProcessGroup:
    """The processes that divide data with this one, where each knows its number ``rank`` of ``ranks`` and no mesh.

    Processes with the same number are peers, in groups of their own, and pair up in the order of their global ranks.
    All processes call it. Raises: RuntimeError without a process group, RankError for numbers that do not divide them.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError("there is no process group yet: call torch.distributed.init_process_group(...) before")
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, (rank, ranks))
    peers = [[member for member, (number, _) in enumerate(answers) if number == part] for part in range(ranks)]
    if (
        {theirs for _, theirs in answers} != {ranks}
        or sum(map(len, peers)) < len(answers)
        or len(set(map(len, peers))) > 1
    ):
        positions = ", ".join(f"rank {member}: {number} of {theirs}" for member, (number, theirs) in enumerate(answers))
        raise RankError(
            f"the processes do not divide data into equal parts ({positions}): give each its position in one mesh"
        )
    columns = [list(column) for column in zip(*peers)]
    group: dist.ProcessGroup
    group, _ = dist.new_subgroups_by_enumeration(columns, backend="gloo")  # type: ignore[no-untyped-call]
    return group


def check_position(loader: Any, rank: int, ranks: int) -> None:
    """Raises: ValueError for a loader that divides data in another way than the trainer does."""
    if isinstance(loader, DataLoader2):
        service = loader.reading_service
        divides, position = service.names_ranks, (service.rank, service.world_size)
    else:
        parts = _parts_that_divide(loader)
        divides, position = any(hasattr(part, "num_replicas") for part in parts), ranks_of_sampler(parts)[::-1]
        if isinstance(loader._plain_dataset(), IterDataPipe):
            divides, position = True, rank_and_ranks(loader._plain_dataset())
    if divides and position != (rank, ranks):
        raise ValueError(
            f"the trainer divides data among dp_world_size={ranks} and this process is dp_rank={rank}, but the loader "
            f"is rank {position[0]} of {position[1]}: peers of tensor, context or pipeline parallelism would have "
            "different batches, or ranks the same ones. Give the loader these ranks: "
            "DistributedReadingService(self.dp_group), DataLoader(..., distributed=self.dp_group), or a sampler or "
            "OrdinalReadingService of dp_rank and dp_world_size"
        )


def warn_undivided(loader: Any) -> None:
    """Say so where there are several ranks and nothing divides the data among them."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return
    if isinstance(loader, DataLoader2):
        divided = loader.reading_service.names_ranks
    else:
        chain = _parts_that_divide(loader)
        divided = ranks_of_sampler(chain)[0] > 1 or any(hasattr(part, "rank") for part in chain)
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

    A DataLoader's position is mostly a count of batches, the same on all ranks: no rank asks another. The states of a
    DataLoader2 are joined into one, which is free of ranks. What cannot be joined (open claims, what workers and
    samplers hold, a graph that divides among ranks apart from shards, ranks that have not agreed on a seed yet) stands
    side by side.
    """
    if _is_common(loader):
        return state
    if not isinstance(loader, DataLoader2):
        return {_RANKS: group_of(loader, _ranks_of(loader)).objects(Talk.STATES, state)}
    states = loader.reading_service.gather(state)
    if loader.has_claims:
        return {_RANKS: states}
    try:
        return merge(states)
    except StateMismatchError:
        return {_RANKS: states}


def own_part(loader: Any, state: dict[str, Any]) -> dict[str, Any]:
    """This rank's part of a shared state. Raises: StateMismatchError for another number of ranks."""
    if set(state) != {_RANKS}:
        return state
    states = state[_RANKS]
    rank, ranks = _position(loader)
    if len(states) != ranks:
        raise StateMismatchError(
            f"the state is that of {len(states)} ranks, side by side, and this run has {ranks}: resume on as many. "
            "States that any number of ranks can load are those of a graph that divides among all shards alike"
        )
    own: dict[str, Any] = states[rank]
    return own


def _position(loader: Any) -> tuple[int, int]:
    """(rank, number of ranks) of ``loader``."""
    if isinstance(loader, DataLoader2):
        return loader.reading_service.rank, loader.reading_service.world_size
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    ranks = _ranks_of(loader)
    return ranks.rank, ranks.count


def _ranks_of(loader: Any) -> DataRanks:
    sampler = loader._index_sampler
    return sampler.ranks if isinstance(sampler, RankedSampler) else data_ranks(True, "a state of all ranks")


def _is_common(loader: Any) -> bool:
    """True if the state is equal on all ranks: that of a DataLoader, where it is a count alone. What workers, datasets
    and other samplers hold is a rank's own, and so are open claims, and an order that each rank draws.
    """
    if _position(loader)[1] == 1:
        return True
    if isinstance(loader, DataLoader2) or loader.has_claims:
        return False
    if loader._is_iterable or is_stateful(loader.dataset):
        return False
    samplers = [*parts_of(loader.sampler), *parts_of(loader.batch_sampler)]
    return all(item is None or type(item) in _COUNTED for item in samplers)


def _key(loader: Any) -> str:
    """The name of this rank's state, where shards have none of their own. What is equal on all ranks has one name."""
    return "state" if _is_common(loader) else "rank {} of {}".format(*_position(loader))


def _has_keys_of_shards(loader: Any) -> bool:
    return isinstance(loader, DataLoader2) and loader.reading_service.total_shards is not None and not loader.has_claims


def keys_of(loader: Any, state: dict[str, Any], step: int) -> dict[str, bytes]:
    """``state``, which this rank's ``loader`` has, in parts: what this rank has to save. Asks no other rank.

    ``step``: how many batches this rank has had since the run began, through all resumes.
    """
    if _has_keys_of_shards(loader):
        return shard_states(state, step)
    return {_key(loader): encode(state)}


def state_of_keys(loader: Any, kept: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """This rank's state, of parts that ranks have saved, and the step of it. All ranks call it, or none.

    Raises: StateMismatchError for parts that are missing or of two saves, StateError for damage, RankError where that
    has happened on another rank.
    """
    if _has_keys_of_shards(loader):
        return _of_shards(loader.reading_service, kept)
    key = _key(loader)
    if key not in kept:
        raise StateMismatchError(
            f"this loader needs {key!r} of the checkpoint, which has {', '.join(map(repr, [*kept][:8])) or 'nothing'}: "
            "load on as many ranks as saved it, and with the same kind of loader; if it had claims, call claims() "
            "before. What any number of ranks can load is saved with total_shards=, or by DataLoader(distributed=)"
        )
    if not isinstance(kept[key], bytes | bytearray):
        raise StateError(f"{key!r} of the checkpoint is damaged: it is {kept[key]!r:.60}, and no bytes")
    return decode(bytes(kept[key]), allow_pickle=False), 0


def _of_shards(service: Any, kept: dict[str, Any]) -> tuple[dict[str, Any], int]:
    part = service.part
    failure: Exception | None = None
    hosted: HostedShards | None = None
    mine: Any = None
    try:
        hosted = HostedShards.read(kept, part.number, part.count, service.total_shards)
        mine = hosted.summary()
    except Exception as error:
        failure, mine = error, f"{type(error).__name__}: {error}"
    answers: list[Any] = service.gather(mine) if service.agrees else [mine]
    if failure is not None:
        raise failure
    failed = [f"rank {other}: {text}" for other, text in enumerate(answers) if isinstance(text, str)]
    if failed:
        raise RankError("not all ranks can load the checkpoint, and all end:\n  " + "\n  ".join(failed))
    assert hosted is not None
    return hosted.state(answers[: part.count], service.agreed_position), hosted.step  # further ranks host the same
