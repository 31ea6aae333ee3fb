"""States that torchdata's ``StatefulDataLoader`` saved, read as positions of ours. Runs in the user's process.

Such a state says how many batches were handed out, what its sampler's iterator knew, and what the dataset and the
workers' datasets said of themselves. It says nothing of the dataset's length, the batch size or the sampler's kind, so
that a loader made otherwise cannot be told. In process, and under ``num_workers``, the layouts differ; see ``_Saved``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import RandomSampler

from torchpipe.data.order.samplers import DRAW_FROM_NOBODY, MOST_SEED, Samplers
from torchpipe.data.order.sampling import SamplerPosition, is_computed
from torchpipe.data.position import Position
from torchpipe.errors import ReplayWarning, StateError
from torchpipe.node.iterator import is_stateful, refusing_misfits, stored_count
from torchpipe.randomness.global_random import RandomStates
from torchpipe.randomness.seeds import fresh_seed
from torchpipe.state import Cursor, encode

__all__ = ["is_stateful_loaders", "position_of"]


def is_stateful_loaders(state: Any) -> bool:
    """Is ``state`` what ``StatefulDataLoader.state_dict()`` returns?"""
    return isinstance(state, Mapping) and (
        "_snapshot" in state or {"_num_yielded", "_sampler_iter_yielded"} <= set(state)
    )


@dataclass(frozen=True, kw_only=True)
class _Saved:
    """What a state says, wherever it says it. ``sampler_at``: the batches before the sampler's own state was taken."""

    delivered: int
    finished: bool
    sampler_at: int
    index_sampler: Any
    sampler_iter: Any
    base_seed: int | None
    dataset: Any
    fetcher: Any
    workers: list[Any] | None  # the state of each worker's dataset
    last_worker: int


def position_of(state: Mapping[str, Any], loader: Any) -> Position:
    """The position that ``state`` stands for in ``loader``. Draws a base seed where the state has none.

    Raises: StateError for what cannot be gone on from here, with the reason.
    """
    with refusing_misfits("a StatefulDataLoader's, which it looks like: it is none that is known"):
        saved = _read(state)
        if loader._is_iterable:
            return _of_iterable(saved, loader)
        if saved.finished:
            return _ended(saved, loader)
        return Position(
            epoch=loader._epochs.epoch,
            delivered=saved.delivered,
            order=_order(saved, loader),
            batches=_dataset(saved, loader),
        )


def _read(state: Mapping[str, Any]) -> _Saved:
    if "_snapshot" not in state:
        sampler_at = _count(state["_sampler_iter_yielded"])
        return _Saved(
            delivered=max(
                _count(state["_num_yielded"]), sampler_at
            ),  # it is less after a batch that raised: that is over
            finished=state.get("_iterator_finished") is True,
            sampler_at=sampler_at,
            index_sampler=state.get("_index_sampler_state"),
            sampler_iter=state.get("_sampler_iter_state"),
            base_seed=None,
            dataset=state.get("dataset_state"),
            fetcher=state.get("fetcher_state"),
            workers=None,
            last_worker=-1,
        )
    snapshot = state["_snapshot"]
    main, workers = snapshot["_main_snapshot"], snapshot["_worker_snapshots"]
    return _Saved(
        delivered=_count(snapshot["_snapshot_step"]) + _count(state["_steps_since_snapshot"]),
        finished=state.get("_iterator_finished") is True,
        sampler_at=_count(snapshot["_snapshot_step"]),
        index_sampler=main.get("_index_sampler_state"),
        sampler_iter=main.get("_sampler_iter_state"),
        base_seed=stored_count(main, "_base_seed", MOST_SEED),
        dataset=None,
        fetcher=None,
        workers=[workers[f"worker_{worker}"] for worker in range(_count(main["_num_workers"]))],
        last_worker=snapshot["_last_yielded_worker_id"],
    )


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 61:
        raise TypeError(f"a number was expected, not {value!r:.40}")
    return value


# -- the order ----------------------------------------------------------------------------------------------------


def _order(saved: _Saved, loader: Any) -> dict[str, Any]:
    sampler = loader._index_sampler
    base_seed = fresh_seed() if saved.base_seed is None else saved.base_seed
    state: dict[str, Any] = {"base_seed": base_seed}
    drawn_by = _generator(saved)
    if is_computed(sampler):
        shuffled = type(getattr(sampler, "sampler", sampler)) is RandomSampler
        if shuffled and drawn_by is None:
            _tell_unknown("RandomSampler")
        return state | ({"drawn_by": drawn_by} if shuffled and drawn_by is not None else {})
    chain = [sampler, *([sampler.sampler] if hasattr(sampler, "sampler") else [])]
    value = saved.index_sampler
    if value is None and isinstance(saved.sampler_iter, Mapping):
        value = saved.sampler_iter.get("sampler_state")
    if value is not None:
        return state | {"start": None, "sampler": _position(saved, value)}
    if drawn_by is not None:
        return state | {"start": _start(loader._samplers, drawn_by)}
    torchdatas = isinstance(saved.sampler_iter, Mapping) and "samples_yielded" in saved.sampler_iter
    if saved.sampler_iter is not None and not torchdatas:
        return state | {"start": None, "sampler": _position(saved, saved.sampler_iter)}
    if torchdatas and "sampler_iter_state" in saved.sampler_iter:
        raise StateError(
            "the state has the state of an iterator of your sampler inside a batch sampler, where it cannot be put: "
            "give the sampler state_dict() and load_state_dict(), or go on with StatefulDataLoader to the epoch's end"
        )
    if not all(type(part) in DRAW_FROM_NOBODY for part in chain):
        _tell_unknown(type(chain[-1]).__name__)
    return state | {"start": None}


def _position(saved: _Saved, state: Any) -> SamplerPosition:
    """``after``: the state is one of after a batch, the epoch's last one perhaps."""
    return {"state": state, "ends": False, "skip": saved.delivered - saved.sampler_at, "after": True}


def _generator(saved: _Saved) -> Any:
    """The state of the generator of torchdata's RandomSampler when the epoch began, or None."""
    state = saved.sampler_iter
    if isinstance(state, Mapping) and "sampler_iter_state" in state:
        state = state["sampler_iter_state"]
    found = state["generator"] if isinstance(state, Mapping) and set(state) == {"yielded", "generator"} else None
    if not isinstance(found, torch.Tensor):
        return None
    torch.Generator().set_state(found)  # raises for what is none
    return found


def _start(samplers: Samplers, drawn_by: torch.Tensor) -> dict[str, Any]:
    """How an epoch began whose sampler drew with its generator in the state ``drawn_by``."""
    parts = samplers.parts
    inner = next((part.generator for part in parts if getattr(part, "generator", None) is not None), None)
    if inner is None:
        raise StateError(
            "the state has the generator of a RandomSampler, and this loader's sampler has none: give generator= or "
            "the sampler as the loader that saved it had it"
        )
    states = [drawn_by if item is inner else item.get_state() for item in samplers.generators]
    nothing = [None] * len(parts)
    return {"now": {"generators": states}, "parts": nothing, "epochs": nothing, "drew": False, "loaded": False}


def _ended(saved: _Saved, loader: Any) -> Position:
    """The next epoch follows, with the generator as it is once the order of this one has been drawn."""
    states = [item.get_state() for item in loader._samplers.generators]
    drawn_by = _generator(saved)
    if drawn_by is not None and loader.generator is not None:
        generator = torch.Generator()
        generator.set_state(drawn_by)
        torch.randperm(len(loader.dataset), generator=generator, device="cpu")
        states[0] = generator.get_state()
    between_epochs = {} if saved.dataset is None else {"dataset": saved.dataset}
    now = {"generators": states}
    return Position(epoch=loader._epochs.epoch + 1, delivered=0, between_epochs=between_epochs, now=now)


def _tell_unknown(kind: str) -> None:
    warnings.warn(
        f"the state does not say which order the {kind} gave: as StatefulDataLoader does, the batches are counted in "
        "the order that it gives now. Is its generator seeded as it was then?",
        ReplayWarning,
        stacklevel=5,
    )


# -- the dataset --------------------------------------------------------------------------------------------------


def _dataset(saved: _Saved, loader: Any) -> dict[str, Any] | None:
    """What a map-style dataset said of itself, where there is a place for it."""
    states = [saved.dataset] if saved.workers is None else [item["dataset_state"] for item in saved.workers if item]
    if all(state is None for state in states) or not is_stateful(loader._plain_dataset()):
        return None
    if saved.workers is None and loader.num_workers == 0:
        return {"dataset": saved.dataset}
    if saved.workers is None or len(saved.workers) != loader.num_workers or saved.sampler_at != saved.delivered:
        raise StateError(
            f"the state has a state of the dataset from each of {len(saved.workers or ())} workers, at batch "
            f"{saved.sampler_at} of {saved.delivered}, and this loader has num_workers={loader.num_workers}: load it "
            "with as many, and save it with snapshot_every_n_steps=1"
        )
    counts = [len(range(worker, saved.delivered, len(states))) for worker in range(len(states))]
    return {"lanes": [_lane(state, count).to_state() for state, count in zip(states, counts)]}


def _lane(state: Any, count: int) -> Cursor:
    """A worker after ``count`` batches. Its global random states begin anew, as StatefulDataLoader lets them."""
    random = RandomStates.now().to_dict()
    return Cursor(encode({"replays": [], "iterator": {"begun": False, "dataset": state}, "random": random}), 0, count)


def _of_iterable(saved: _Saved, loader: Any) -> Position:
    if saved.finished:
        return _ended(saved, loader)
    workers = 0 if saved.workers is None else len(saved.workers)
    if workers != loader.num_workers:
        raise StateError(
            f"the state is of an iterable dataset that {workers} workers divided among themselves, and this loader has "
            f"num_workers={loader.num_workers}: give it as many"
        )
    parts = (
        [{"dataset_state": saved.dataset, "fetcher_state": saved.fetcher}] if saved.workers is None else saved.workers
    )
    begins = [_begin(part or {}) for part in parts]
    has_states = any(begin[name] is not None for begin in begins for name in ("dataset", "iterator"))
    sampler_at = saved.sampler_at if has_states else 0  # else it is iterated from its start
    lanes = len(begins)
    live = [lane for lane in range(lanes) if not (has_states and begins[lane]["ended"])]
    counts = [len(range(lane, sampler_at, lanes)) for lane in range(lanes)]
    turn = sum(lane <= saved.last_worker for lane in live) % max(1, len(live)) if has_states else 0
    cursors = [Cursor(None, 0, count).to_state() for count in counts]
    if not has_states and saved.delivered:
        warnings.warn(
            f"the state has nothing of the dataset but a count: {saved.delivered} batches are made and dropped to "
            "resume. Give the dataset or its iterator state_dict() and load_state_dict() to resume at once",
            ReplayWarning,
            stacklevel=4,
        )
    return Position(
        epoch=loader._epochs.epoch,
        delivered=sampler_at,
        batches={
            "stream": {"live": live, "turn": turn, "counts": counts, "shards": cursors},
            "shards": lanes,
            "workers": workers > 0,
            "seed": fresh_seed() if saved.base_seed is None else saved.base_seed,
            "drop": saved.delivered - sampler_at,
            "begins": begins if has_states else None,
        },
    )


def _begin(part: Mapping[str, Any]) -> dict[str, Any]:
    fetcher = part.get("fetcher_state") or {}
    return {
        "dataset": part.get("dataset_state"),
        "iterator": fetcher.get("dataset_iter_state"),
        "ended": fetcher.get("fetcher_ended") is True,
    }
