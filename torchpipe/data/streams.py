"""An epoch of an iterable dataset, begun for a ``DataLoader``: which service runs it, with which seed, from where.

Runs in the user's process.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.data import processes, threads
from torchpipe.data.batches import Batches
from torchpipe.data.iterable import IterableBatches, batch_graph, check_ranks, saved_shards
from torchpipe.data.nodes import InitWorker
from torchpipe.data.order.between_epochs import lanes_now, start_at
from torchpipe.data.position import Position
from torchpipe.data.ranks.graph import agreed, rank_and_ranks
from torchpipe.errors import StateError
from torchpipe.execution.provider import ShardProvider
from torchpipe.execution.reading_service import EpochStart, InProcessReadingService
from torchpipe.execution.shard import assumed_at, behind, leads
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import is_stateful, refusing_misfits, stored_count
from torchpipe.randomness.seeds import fresh_seed
from torchpipe.state import Cursor, encode
from torchpipe.state.cursor import Rotation
from torchpipe.values import put

if TYPE_CHECKING:
    from torchpipe.data.loader import DataLoader

__all__ = ["begin_stream", "goes_on", "lanes_behind", "put_dataset"]


def begin_stream(loader: DataLoader[Any], epoch: int, saved: Position | None) -> Batches:
    """The batches of ``epoch``, or what ``saved`` says is left of it, by the loader's workers."""
    dataset = loader._plain_dataset()
    position = None if saved is None else saved.batches
    shards, workers = saved_shards(position) or loader._division
    service = loader._pool
    if service is not None and (position is not None or service.default_num_shards != shards):
        loader._end_workers()  # they have gone on since, and their number belongs to the stream
        service = None
    begins = None if position is None else position.get("begins")
    keeps = loader.persistent_workers and loader._samplers.keeps_seed and loader.worker_method != "thread"
    rank, world_size = rank_and_ranks(dataset)
    if position is None:
        seed = _draw(loader, dataset, rank, world_size)
    else:
        seed = stored_count(position, "seed", (1 << 63) - 1)
        check_ranks(position, rank, world_size)
    if service is None:
        service = _service(loader, dataset, shards, workers, seed, begins)
    if keeps:
        loader._pool = service
    loader._carried = replace(loader._carried, base_seed=seed)
    service.measuring = loader.measuring
    # Of torch's own graphs, as in torch's loader, the seed alone decides: it is drawn for each epoch
    of_torch = isinstance(dataset, TorchIterDataPipe) and not isinstance(dataset, IterDataPipe)
    start = EpochStart(
        seed=seed,
        epoch=0 if of_torch else epoch,
        num_shards=shards,
        rank=rank,
        world_size=world_size,
        delivered=0 if saved is None else saved.delivered,
        state=_after(loader) if position is None else position["stream"],
        in_order=loader.in_order,
    )
    of_users = not workers and is_stateful(dataset) and not isinstance(dataset, TorchIterDataPipe)
    here = dataset if of_users and start.state is None else None
    if (kept := loader._samplers.dataset) is not None:
        kept.begun = None  # by this pass; the last one may have been struck as it was closed
    try:
        return IterableBatches(
            service,
            start,
            workers=workers,
            keeps=keeps,
            begins=begins,
            here=here,
            goes_on=goes_on(loader),
            stands=partial(_stands, loader, start.state),
        )
    except BaseException:  # a warning that is an error, say: nobody else can end what was started
        if not keeps:
            service.finalize()
        raise


def goes_on(loader: DataLoader[Any]) -> bool:
    """True if the next epoch uses an iterable dataset, here or in workers that persist, as this one leaves it."""
    used_again = loader._samplers.keeps_seed or not loader._division[1]
    return used_again and not isinstance(loader._plain_dataset(), TorchIterDataPipe)


def lanes_behind(loader: DataLoader[Any], left: Position) -> list[Cursor] | None:
    """The cursors of :meth:`Batches.between`, for a position that was loaded and is left there."""
    batches = left.batches
    if batches is None or not goes_on(loader):
        return None
    where = Rotation.from_state(batches["stream"], batches["shards"])
    if not left.delivered:
        return list(where.cursors)
    return [
        behind(cursor, batches["seed"], left.epoch, ended=index not in where.live)
        for index, cursor in enumerate(where.cursors)
    ]


def put_dataset(loader: DataLoader[Any], loaded: Position) -> None:
    """Put the dataset, where it is read in this process, to where the rest of a loaded epoch begins: the user may set
    in it then what counts.
    """
    kept, (shards, workers) = loader._samplers.dataset, loader._division
    if kept is None:
        return
    stream = (loaded.batches or {}).get("stream")
    begins = loader._carried.lanes if stream is None else Rotation.from_state(stream, shards).cursors
    values = assumed_at(begins[0]) if begins and not workers else []
    wanted = encode(values[0] if values else [])
    if stream is not None or encode(kept.now()) != wanted:  # else it stands there, with what cannot be taken down
        put(kept, [], compares=False)  # the state says which data there are
        with suppress(StateError), refusing_misfits("the dataset"):  # of another dataset: iter() says so
            for value in values:
                put(kept, value)
    kept.closed = None if workers else encode(kept.now())


def _stands(loader: DataLoader[Any], begins: dict[str, Any] | None) -> dict[str, Any] | None:
    """The position before the first batch, of a dataset that is read here, unless others lead the pass on to there."""
    kept = loader._samplers.dataset
    if kept is None or loader._division[1]:
        return None
    if begins is not None and leads(Rotation.from_state(begins, 1).cursors[0]):
        return None
    return Rotation((start_at(kept.now() if kept.begun is None else kept.begun),), (0,), 0).to_state()


def _after(loader: DataLoader[Any]) -> dict[str, Any] | None:
    """The position before the first batch, where the epoch before has left something in the workers' datasets."""
    lanes, kept = lanes_now(loader), loader._samplers.dataset
    if kept is not None and kept.closed is not None:
        now = encode(kept.now())
        kept.told &= now == kept.closed
        kept.closed = now  # it stands there, with what cannot be taken down
    if lanes is None:
        return None
    return Rotation(tuple(lanes), tuple(range(len(lanes))), 0).to_state()


def _draw(loader: DataLoader[Any], dataset: Any, rank: int, world_size: int) -> int:
    """Draw for an epoch as torch's loader: a seed that the nodes share, and, for new workers, the base seed."""
    shared = fresh_seed(loader.generator) if isinstance(dataset, TorchIterDataPipe) else None
    kept = loader._carried.base_seed if loader._samplers.keeps_seed else None
    own = fresh_seed(loader.generator) if kept is None else kept
    if shared is None or (world_size == 1 and kept is None):
        return own
    return agreed(loader, shared, world_size)


class _InTheProcessStates(InProcessReadingService):
    """The dataset draws from the process's own random states, as with torch's loader."""

    def _start_shards(self, start: EpochStart, cursors: Mapping[int, Cursor]) -> ShardProvider:
        return self._start_local_shards(start, cursors, manage_random=False)

    def _manages_random(self) -> bool:
        return False


def _service(loader: DataLoader[Any], dataset: Any, shards: int, workers: bool, seed: int, begins: Any) -> Any:
    graph = batch_graph(
        dataset,
        loader.batch_size,
        loader.drop_last,
        loader.collate_fn,
        workers=shards if workers else 0,
        as_torch=workers and loader.worker_seeding == "torch",
        base_seed=seed,
        begins=begins,
        kept=None if workers else loader._samplers.dataset,
    )
    if not loader._reads_here:
        engine: Any = threads if loader.worker_method == "thread" else processes
        service: Any = engine.iterable_service(loader, shards, dataset, seed)
    else:
        init = InitWorker(loader.worker_init_fn, dataset, seed, copies=True, here=True) if workers else None
        own_states = workers or loader.worker_seeding == "batch"
        service = (InProcessReadingService if own_states else _InTheProcessStates)(num_shards=shards, init_fn=init)
    service.initialize(graph)
    return service
