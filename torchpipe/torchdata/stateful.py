"""States that torchdata's ``StatefulDataLoader`` saved, read as positions of ours. Runs in the user's process.

Two kinds are taken. A state from between two epochs holds what the sampler and the dataset say of themselves. A state
from the midst of an epoch is taken where a count of batches says all: of a sequential order, and of a shuffled one
whose generator the state holds, if this loader has one to put it into. All others are refused.

``DataLoader.load_state_dict`` comes here with what has none of its own keys, and checks the position that it gets as
one of its own states'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import RandomSampler

from torchpipe.compat.torch_private import reads_whole
from torchpipe.data.order.samplers import MOST_SEED
from torchpipe.data.order.sampling import is_computed
from torchpipe.data.position import Position
from torchpipe.errors import StateError
from torchpipe.node.iterator import is_stateful, refusing_misfits, stored_count
from torchpipe.randomness.seeds import fresh_seed
from torchpipe.state import Cursor

__all__ = ["position_of"]


@dataclass(frozen=True, kw_only=True)
class _Saved:
    """The content of a state, wherever it stands there. ``sampler`` and ``datasets`` are their own states."""

    delivered: int
    finished: bool
    is_exact: bool  # the sampler and the datasets said so after the last batch
    base_seed: int | None
    sampler: Any
    iterator: Any  # of the sampler, if it is not torchdata's own
    drawn_by: torch.Tensor | None  # the state of the generator of torchdata's RandomSampler when the epoch began
    datasets: list[Any]
    workers: int


def position_of(state: Mapping[str, Any], loader: Any) -> Position:
    """The position that ``state`` stands for in ``loader``. Draws a base seed where the state has none.

    Raises: StateError for what is no state of a StatefulDataLoader, or cannot be gone on from here, with the reason.
    """
    if "_snapshot" not in state and "_num_yielded" not in state:
        raise StateError(
            f"not the state of a torchpipe DataLoader, nor of a StatefulDataLoader: it has "
            f"{', '.join(map(str, state))[:200]}. Pass the dict from state_dict() as it was"
        )
    with refusing_misfits("a StatefulDataLoader's, which it looks like: it is none that is known"):
        saved = _read(state)
    if loader.distributed:
        raise _refused("batches of a sampler's, and this loader divides by distributed=")
    if saved.finished:
        return _ended(saved, loader)
    return Position(epoch=loader._epochs.epoch, delivered=saved.delivered, order=_order(saved, loader))


def _refused(what: str) -> StateError:
    return StateError(
        f"the state has {what}, and its count of batches does not say where to go on: finish the epoch with "
        "StatefulDataLoader, and load what it saves then"
    )


def _refused_end(what: str) -> StateError:
    return StateError(
        f"the state of an epoch's end has {what}: go on with StatefulDataLoader, or begin the next epoch without it "
        "(loader.set_epoch)"
    )


def _read(state: Mapping[str, Any]) -> _Saved:
    finished = state.get("_iterator_finished") is True
    if "_snapshot" not in state:
        sampler_at = _count(state["_sampler_iter_yielded"])
        delivered = max(_count(state["_num_yielded"]), sampler_at)  # it is less after a batch that raised: that is over
        main, base_seed, ahead, workers, parts = state, None, 0, 0, [state]
    else:
        snapshot = state["_snapshot"]
        main, ahead = snapshot["_main_snapshot"], _count(state["_steps_since_snapshot"])
        delivered = _count(snapshot["_snapshot_step"]) + ahead
        base_seed, workers = stored_count(main, "_base_seed", MOST_SEED), _count(main["_num_workers"])
        parts = [snapshot["_worker_snapshots"][f"worker_{worker}"] or {} for worker in range(workers)]
    sampler, iterator, drawn_by = _of_sampler(main.get("_index_sampler_state"), main.get("_sampler_iter_state"))
    return _Saved(
        delivered=delivered,
        finished=finished,
        is_exact=not ahead,
        base_seed=base_seed,
        sampler=sampler,
        iterator=iterator,
        drawn_by=drawn_by,
        datasets=[part.get("dataset_state") for part in parts],
        workers=workers,
    )


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 61:
        raise TypeError(f"a number was expected, not {value!r:.40}")
    return value


def _of_sampler(sampler: Any, iterator: Any) -> tuple[Any, Any, torch.Tensor | None]:
    """(what the sampler says of itself, what its iterator does, the generator of torchdata's own)."""
    if isinstance(iterator, Mapping) and "samples_yielded" in iterator:  # of torchdata's BatchSampler
        sampler = iterator.get("sampler_state") if sampler is None else sampler
        iterator = iterator.get("sampler_iter_state")
    if not isinstance(iterator, Mapping) or set(iterator) != {"yielded", "generator"}:
        return sampler, iterator, None
    drawn_by = iterator["generator"]
    torch.Generator().set_state(drawn_by)  # raises for what is none
    return sampler, None, drawn_by


# -- within an epoch ----------------------------------------------------------------------------------------------


def _order(saved: _Saved, loader: Any) -> dict[str, Any]:
    """The order in our own form: a count of batches says the rest."""
    if loader._is_iterable:
        raise _refused("a position within an iterable dataset")
    if saved.sampler is not None or saved.iterator is not None:
        raise _refused("what a sampler says of itself within an epoch")
    if any(item is not None for item in saved.datasets):
        raise _refused("what a dataset says of itself within an epoch")
    sampler, samplers = loader._index_sampler, loader._samplers
    inner = getattr(sampler, "sampler", sampler)
    base_seed = fresh_seed() if saved.base_seed is None else saved.base_seed
    state = {"base_seed": base_seed, "parts": samplers.present_parts()}
    if not is_computed(sampler):
        return state | _drawn(saved, loader, inner)
    if type(inner) is RandomSampler:
        raise _refused("an order that was shuffled: put it into a loader with generator=torch.Generator()")
    return state | {"length": len(inner.data_source), "size": getattr(sampler, "batch_size", 1)}


def _drawn(saved: _Saved, loader: Any, sampler: Any) -> dict[str, Any]:
    """The order of a RandomSampler with a generator, which is put back to where it stood when the epoch began."""
    if saved.drawn_by is None or not _draws_alike(sampler):
        raise _refused(f"no more than a count of what {type(sampler).__name__} gave")
    start = loader._samplers.capture()
    generators = _with(loader, sampler.generator, saved.drawn_by)
    start |= {"now": start["now"] | {"generators": generators}, "drew": False, "loaded": False}
    # A digest is compared in the process that made it, and this is nobody's
    return {"start": start, "asked": saved.delivered, "ended": False, "digest": 0, "process": -1}


def _draws_alike(sampler: Any) -> bool:
    """Is it torch's or torchdata's RandomSampler, with a generator, from which it draws one permutation an epoch?"""
    of_torchdata = type(sampler).__name__ == "RandomSampler" and type(sampler).__module__.startswith("torchdata.")
    known = type(sampler) is RandomSampler or of_torchdata
    return known and isinstance(sampler.generator, torch.Generator) and reads_whole(sampler)


def _with(loader: Any, generator: torch.Generator, state: torch.Tensor) -> list[torch.Tensor]:
    """The states of the loader's generators, of which one is another."""
    return [state if item is generator else item.get_state() for item in loader._samplers.generators]


# -- between two epochs -------------------------------------------------------------------------------------------


def _ended(saved: _Saved, loader: Any) -> Position:
    """The next epoch follows: with what sampler and dataset say, and the generator as it is behind this one's order.

    What the iterators of the pass that is over say is of no use any more, as in StatefulDataLoader.
    """
    epoch = loader._epochs.epoch + 1
    states = [item for item in saved.datasets if item is not None]
    own = [*states, *([] if saved.sampler is None else [saved.sampler])]
    if own and not saved.is_exact:
        raise _refused_end("what sampler or dataset said some batches before it (snapshot_every_n_steps)")
    if states and (saved.workers or loader.num_workers or not is_stateful(loader._plain_dataset())):
        raise _refused_end(
            f"what a dataset says of itself under num_workers={saved.workers}, and this loader has num_workers="
            f"{loader.num_workers} and {type(loader._plain_dataset()).__name__}"
        )
    samplers = loader._samplers.capture()
    kept: dict[str, Any] = {"samplers": samplers}
    if loader._is_iterable:
        kept["division"] = [max(1, saved.workers), saved.workers > 0]
        batches = _begun(states[0], saved) if states else None
        return Position(epoch=epoch, delivered=0, batches=batches, between_epochs=kept)
    if states:
        kept["dataset"] = states[0]
    if saved.sampler is not None:
        if loader._samplers.owner is None:
            raise _refused_end("what a sampler says of itself, and this loader's has no state_dict()")
        kept["sampler"] = {"state": saved.sampler, "ends": 0, "skip": 0}
    sampler = getattr(loader._index_sampler, "sampler", loader._index_sampler)
    if saved.drawn_by is not None and _draws_alike(sampler):
        generator = torch.Generator()
        generator.set_state(saved.drawn_by)
        torch.randperm(len(sampler.data_source), generator=generator, device="cpu")
        samplers["now"] |= {"generators": _with(loader, sampler.generator, generator.get_state())}
    return Position(epoch=epoch, delivered=0, between_epochs=kept)


def _begun(dataset: Any, saved: _Saved) -> dict[str, Any]:
    """An epoch of an iterable dataset, read in the user's process, that begins with what ``dataset`` says."""
    return {
        "stream": {"live": [0], "turn": 0, "counts": [0], "shards": [Cursor(None, 0, 0).to_state()]},
        "shards": 1,
        "workers": False,
        "seed": fresh_seed() if saved.base_seed is None else saved.base_seed,
        "begins": [{"dataset": dataset, "iterator": None}],
    }
