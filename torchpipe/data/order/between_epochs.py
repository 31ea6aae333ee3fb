"""The values that the next epoch takes over from those before it: of samplers, datasets and workers.

Runs in the user's process. A state holds these where no epoch is under way.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.data.order.samplers import MOST_SEED, RolloverBatchSampler, load_into, stands_at
from torchpipe.data.order.sampling import check_sampler_position
from torchpipe.errors import StateMismatchError
from torchpipe.execution.shard import announce_leading, beginning
from torchpipe.node.iterator import is_stateful, stored_count
from torchpipe.node.user_warnings import warn_user
from torchpipe.state import Cursor, encode
from torchpipe.state.flat import MAX_SHARDS, damaged, shown
from torchpipe.values import Saved, kept_of

if TYPE_CHECKING:
    from torchpipe.data.loader import DataLoader

__all__ = [
    "Carried",
    "between_epochs",
    "check_between_epochs",
    "check_seeding",
    "forget",
    "keep_division",
    "keep_start",
    "lanes_now",
    "look_at_dataset",
    "restore",
    "start_at",
    "take_back",
]


_NUMBER = 1  # in its graph, of the node that says how the dataset stands: the next one after it


@dataclass(frozen=True)
class Carried:
    """The values that the next epoch takes over, but for those in samplers, generators and datasets of this process.

    Replaced as a whole where an epoch has ended or was left, and where a state is loaded. Beginning an epoch uses it up
    no more than reading does: one that fails to begin has taken nothing.
    """

    base_seed: int | None = None  # of all epochs, with workers that persist; of the one that has begun
    sampler: Any = None  # how its last pass leads to the next one, if it has a state of its own
    stands: bool = False  # True if it stands there
    lanes: list[Cursor] | None = None  # where datasets begin that go on
    division: tuple[int, bool] | None = None  # of a state: how many divide an iterable dataset, and are they workers?


def keep_start(loader: DataLoader[Any]) -> None:
    """The first epoch is about to begin, or a state is being loaded: what this loader can be taken back to."""
    if loader._ranked is None and loader._samplers.start is None:
        loader._samplers.start = between_epochs(loader, begun=False)
    look_at_dataset(loader)


def look_at_dataset(loader: DataLoader[Any]) -> None:
    """An iterable dataset that this process reads is looked at before it is read: what changes from then on counts."""
    dataset, samplers = loader._plain_dataset(), loader._samplers
    if loader._is_iterable and samplers.dataset is None and not loader._division[1]:
        samplers.dataset = None if isinstance(dataset, TorchIterDataPipe) else kept_of(dataset)


def between_epochs(loader: DataLoader[Any], *, begun: bool, under_way: bool = False) -> dict[str, Any]:
    """Plain data. ``under_way``: of an epoch that says itself where its dataset stands. ``begun``: True if one has been
    iterated. Before that, samplers are as they were made, or as the
    user has changed them since: a loader that has been used is taken back to there.
    """
    if loader._ranked is not None:
        return loader._ranked.kept()
    samplers, carried = loader._samplers, loader._carried
    state: dict[str, Any] = {"samplers": samplers.capture(whole=not begun)}
    if samplers.keeps_seed and carried.base_seed is not None:
        state["base_seed"] = carried.base_seed
    owner, dataset = samplers.owner, _dataset_with_state(loader)
    unsure = nullcontext() if begun else suppress(Exception)  # who has not been used may have nothing to tell yet
    if owner is not None:
        with unsure:
            own = {"state": copy.deepcopy(owner.state_dict()), "ends": False, "skip": 0}
            state["sampler"] = carried.sampler or own
    if dataset is not None:
        with unsure:
            state["dataset"] = copy.deepcopy(dataset.state_dict())
    if not under_way and (lanes := lanes_now(loader)) is not None:
        state["lanes"] = [cursor.to_state() for cursor in lanes]
    if loader._is_iterable:
        state["division"] = list(loader._division)
    elif is_stateful(loader.dataset) or loader.worker_seeding == "torch":
        state["workers"] = loader.num_workers  # what is made of a sample depends on their number
    return state


def lanes_now(loader: DataLoader[Any]) -> list[Cursor] | None:
    """The starts of the next pass: with what the user has set, since the last one, in a dataset of this process."""
    kept, lanes = loader._samplers.dataset, loader._carried.lanes
    if kept is None or kept.closed is None or encode(now := kept.now()) == kept.closed:
        return lanes
    return [start_at(now)]


def start_at(values: Saved) -> Cursor:
    """The start of a pass over a dataset that has these."""
    return Cursor(beginning([[_NUMBER, values]]), 0, 0) if values else Cursor()


def restore(loader: DataLoader[Any], order: dict[str, Any] | None, state: dict[str, Any] | None) -> None:
    """Let the next epoch take over what :func:`check_between_epochs` accepts. ``order``: of one that is under way."""
    samplers = loader._samplers
    sampler = samplers.sampler
    base_seed = loader._carried.base_seed if order is None else order.get("base_seed")
    loader._carried = Carried(base_seed, division=loader._carried.division)
    division = (state or {}).get("division")
    if division is not None:
        keep_division(loader, *division)
    if order is not None and isinstance(sampler, RolloverBatchSampler):
        sampler.carried = list(order["start"]["carried"])  # now: the length counts it
    kept = order if order is not None else state
    if loader._ranked is not None and kept is not None:
        loader._ranked.take_over(kept)
    if order is not None or state is None or loader._ranked is not None:
        return
    if "samplers" in state:
        samplers.put(state["samplers"], epochs=True)
    _put_back(loader, state)
    lanes = None
    if "lanes" in state:
        lanes = [cursor for item in state["lanes"] if (cursor := Cursor.from_state(item)) is not None]
        announce_leading(lanes)
    loader._carried = replace(loader._carried, lanes=lanes, base_seed=state.get("base_seed"))


def take_back(loader: DataLoader[Any], carried: Carried, now: dict[str, Any], standing: dict[str, Any] | None) -> None:
    """An epoch has failed to begin: the next one takes over what that would have. ``standing``: where it is known, what
    :func:`between_epochs` gave before; else generators alone are put back.
    """
    loader._end_workers()  # they may have begun
    loader._carried = carried
    if standing is None or "samplers" not in standing:
        loader._samplers.put_now(now)
    else:
        loader._samplers.put(standing["samplers"], epochs=False)
        _put_back(loader, standing)


def _put_back(loader: DataLoader[Any], state: dict[str, Any]) -> None:
    """Load the states of a sampler and of a dataset in this process, if they have any."""
    owner, dataset = loader._samplers.owner, _dataset_with_state(loader)
    position = state.get("sampler")
    if owner is not None and position is not None and (position["ends"] or not stands_at(owner, position["state"])):
        load_into(owner, position["state"])
        loader._carried = replace(loader._carried, stands=True, sampler=position)
    if dataset is not None and "dataset" in state and not stands_at(dataset, state["dataset"]):
        load_into(dataset, state["dataset"])


def keep_division(loader: DataLoader[Any], shards: int, workers: bool) -> None:
    """Let all epochs of an iterable dataset be divided as in the run that a state is of."""
    loader._carried = replace(loader._carried, division=None)
    if loader._division == (shards, workers):
        return
    loader._carried = replace(loader._carried, division=(shards, workers))
    look_at_dataset(loader)
    where = f"at most {shards} process{'es' if shards > 1 else ''} at work" if workers else "are read in this process"
    warn_user(
        f"the state is of a run with num_workers={shards if workers else 0}, and this loader has num_workers="
        f"{loader.num_workers}: an iterable dataset is divided among its workers, so that the order of samples depends "
        f"on their number. This and all later epochs have the order of the run that was saved, and {where}. To divide "
        "the dataset anew, begin a new run",
        UserWarning,
    )


def forget(loader: DataLoader[Any]) -> None:
    """Let the next epoch take over nothing: samplers and datasets are as they were before the first."""
    loader._carried = Carried()
    if loader._ranked is not None:
        loader._ranked.forget_row()
    samplers = loader._samplers
    if isinstance(samplers.sampler, RolloverBatchSampler):
        samplers.sampler.carried = []
    if samplers.start is not None:
        samplers.put_own(samplers.start["samplers"])
        _put_back(loader, samplers.start)


def _dataset_with_state(loader: DataLoader[Any]) -> Any:
    """The dataset, if it is read in this process and keeps a state."""
    here = loader.num_workers == 0 and not loader._is_iterable
    return loader.dataset if here and is_stateful(loader.dataset) else None


def check_seeding(loader: DataLoader[Any], batches: dict[str, Any] | None) -> None:
    """Raises: StateMismatchError where batches were made in process, and workers of torch's would make other ones."""
    if loader.worker_seeding == "torch" and loader.num_workers and "lanes" not in (batches or {}):
        raise StateMismatchError(
            f"the state was saved with num_workers=0, this loader has num_workers={loader.num_workers}: with "
            "worker_seeding='torch', what a worker makes of a sample depends on how many there are. Make it with as "
            "many"
        )


def check_between_epochs(loader: DataLoader[Any], state: Any) -> None:
    """Raises: StateError for what is no such state, StateMismatchError for that of another loader."""
    if not isinstance(state, dict):
        raise damaged("it does not say what is kept between epochs")
    if loader._ranked is not None:
        if "seed" not in state:
            raise damaged("it has no seed for the epochs of all ranks")
        loader._ranked.check_kept(state)
        return
    if "samplers" not in state:
        raise damaged("it does not say how its samplers stand")
    loader._samplers.check(state["samplers"])
    if "sampler" in state:
        check_sampler_position(state["sampler"])
    if "base_seed" in state:
        stored_count(state, "base_seed", MOST_SEED)
    division = state.get("division")
    if (division is not None) != loader._is_iterable:
        raise damaged("it does not say among whom its dataset is divided")
    if division is not None:
        if type(division) is not list or len(division) != 2 or type(division[1]) is not bool:
            raise damaged(f"its dataset is divided among {shown(division)}")
        if not stored_count({"shards": division[0]}, "shards", MAX_SHARDS):
            raise damaged("its dataset is divided among nobody")
    workers = state.get("workers", loader.num_workers)
    if workers != loader.num_workers:
        raise StateMismatchError(
            f"the state was saved with num_workers={shown(workers)}, this loader has num_workers={loader.num_workers}: "
            "with worker_seeding='torch', or a dataset with a state_dict of its own, what a worker makes of a sample "
            "depends on how many there are. Make it with as many"
        )
    lanes = state.get("lanes")
    if lanes is None:
        return
    if type(lanes) is not list or any(Cursor.from_state(item) is None for item in lanes):
        raise damaged(f"the states of its workers' datasets are {shown(lanes)}")
    if len(lanes) != (loader.num_workers if division is None else division[0]):
        raise StateMismatchError(
            f"the state has the states of the datasets of {len(lanes)} workers, and this loader has num_workers="
            f"{loader.num_workers}: make it as the one that saved it"
        )
