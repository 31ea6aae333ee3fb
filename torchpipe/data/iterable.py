"""Batches of an iterable dataset: a graph of nodes, run by the reading services that run any graph.

Runs in the user's process; :class:`WorkersOwn` in workers as well.

The dataset divides itself, by ``get_worker_info()``: its workers are shards, and their number belongs to the stream. A
state therefore says how many there were, and goes on with as many, in however many processes. Where a process hosts
several, each has a copy of the dataset of its own (:class:`~torchpipe.data.nodes.InitWorker`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.data.batches import Batches
from torchpipe.data.fetch import make_worker_info, read_infos, set_worker_info
from torchpipe.data.nodes import seed_worker
from torchpipe.data.order.samplers import load_into
from torchpipe.data.ranks.graph import divides_itself
from torchpipe.errors import ReplicatedSourceWarning, StateError, StateMismatchError
from torchpipe.execution.figures import ServiceFigures
from torchpipe.execution.reading_service import EpochStart, ReadingServiceInterface
from torchpipe.iter import Collator, IterableWrapper
from torchpipe.loader.handing import StreamHanding
from torchpipe.loader.observing import merges_of
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator, is_stateful, stored_count
from torchpipe.node.traits import callable_name
from torchpipe.randomness.global_random import GlobalRandom
from torchpipe.state import Cursor, encode
from torchpipe.state.flat import MAX_SHARDS
from torchpipe.stats import MergeStats
from torchpipe.values import ObjectTracker, Saved, kept_of, put

__all__ = [
    "IterableBatches",
    "WorkersOwn",
    "batch_graph",
    "check_ranks",
    "saved_shards",
]


class _Source(IterableWrapper[Any]):
    """The dataset as a node. Each pass asks it for an iterator, which may be the dataset itself."""

    def __init__(self, dataset: Any, deepcopy: bool = True) -> None:
        super().__init__(dataset, deepcopy)
        self._once = None

    @property
    def node_title(self) -> str:
        """Users know their dataset."""
        return f"the dataset {type(self.iterable).__name__}"


class _Batches(Collator[Any]):
    """The graph's last node."""

    def __init__(self, datapipe: Any, collate_fn: Callable[[Any], Any], *, workers: bool) -> None:
        super().__init__(datapipe, collate_fn)
        self.item_words = ("batch", "worker" if workers else "")  # as errors have them

    @property
    def node_title(self) -> str:
        """Users know their function."""
        return callable_name(self.fn)


class WorkersOwn(IterDataPipe[Any]):
    """Hands on all items of its input in each shard, to which it is a worker of torch's: ``get_worker_info()`` says so.

    Without ``workers``, it is none's.
    """

    divides = True
    one_to_one = True  # the dataset itself has left out what is others'
    goes_on = True

    def __init__(
        self,
        datapipe: Any,
        dataset: Any,
        *,
        workers: bool,
        as_torch: bool,
        base_seed: int,
        begins: list[dict[str, Any]] | None = None,
        kept: ObjectTracker | None = None,
    ) -> None:
        self.datapipe = datapipe
        self.dataset = dataset
        self.begins = begins
        self.kept = kept  # of the dataset, which is used in place: what a pass leaves in it, the next one finds
        self.workers = workers
        self.as_torch = as_torch
        self.base_seed = base_seed
        self._ran: tuple[tuple[int, int], bytes] | None = None  # here, the last pass: what it left at its first item

    def assumption(self) -> Saved:
        """The changes that make of the dataset, as it was made, the present one."""
        return [] if self.kept is None else self.kept.now()

    def note_first(self, context: Context) -> None:
        """A pass has given its first item."""
        self._ran = (context.seed, context.epoch), encode(self.assumption())

    def begins_again(self, seed: int, epoch: int) -> bool:
        """False where that pass was run here, and the dataset is as it was behind the first item, or the user has
        changed it since the pass was closed.
        """
        kept, now = self.kept, encode(self.assumption())
        if self._ran == ((seed, epoch), now) or (kept is not None and kept.closed not in (None, now)):
            return False
        if kept is not None:
            put(kept, [], compares=False)
        return True

    def iterate(self, context: Context) -> NodeIterator[Any]:
        assumed = context.shared.assumed.get(context.node_id(self))
        if self.kept is not None:
            if assumed is not None and self.kept.closed != encode(assumed):  # else it stands there, but for the user
                put(self.kept, assumed)
            self.kept.closed, self.kept.begun = None, self.kept.now()
        return _OwnIterator(self, context, self.datapipe)


class _OwnIterator(NodeIterator[Any]):
    node: WorkersOwn
    begun = ended = False

    def __init__(self, node: WorkersOwn, context: Context, *sources: Any) -> None:
        super().__init__(node, context, *sources)
        self._workers = context.num_shards // context.world_size if node.workers else 0
        self._info = None
        if node.workers:
            worker = context.local_shard
            self._info = make_worker_info(worker, self._workers, node.base_seed + worker, node.dataset)

    def get_state(self) -> dict[str, Any]:
        left = self.node.assumption() if self.ended else []  # which this pass has changed, and will not run again
        return {"begun": self.begun, "left": left} if left else {"begun": self.begun}

    def set_state(self, state: dict[str, Any]) -> None:
        self.begun = state["begun"] is True
        if "left" in state and self.node.kept is not None:
            put(self.node.kept, state["left"])

    @contextmanager
    def _as_worker(self) -> Iterator[None]:
        """All code of the dataset's runs like this: a process may host several workers."""
        outside = set_worker_info(self._info)
        try:
            yield
        finally:
            set_worker_info(outside)

    def state_dict(self) -> dict[str, Any]:
        with self._as_worker():
            return super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with self._as_worker():
            super().load_state_dict(state)

    def close(self) -> None:
        ends = not self.pass_engine.is_closed
        with self._as_worker():
            super().close()  # first: a generator of the user's may change the dataset as it is closed
        if ends and self.node.kept is not None:
            self.node.kept.closed, self.node.kept.begun = encode(self.node.assumption()), None

    def run(self) -> Iterator[Any]:
        node, context = self.node, self.context
        if node.as_torch and not self.begun:
            seed_worker(node.base_seed, context.local_shard)
        begins = None if node.begins is None or self.begun else node.begins[0]["dataset"]
        if begins is not None:  # a dataset may have nothing to say before its first pass
            with self._as_worker():
                load_into(node.dataset, begins)
        # What goes on may have asked in a pass before
        looks = self._workers > 1 and not self.begun and not isinstance(node.dataset, TorchIterDataPipe)
        first, self.begun = not self.begun, True
        stream = self.source.items()
        while True:
            with self._as_worker():
                item = next(stream, stream)
            if item is stream:
                self.ended = True
                self._tell_of_lost()
                return
            if first:
                first = False
                node.note_first(context)
                if looks:
                    self._tell_if_read_whole()
            yield item

    def _tell_of_lost(self) -> None:
        kept, warn = self.node.kept, self.context.warn_once
        if kept is None or kept.told or warn is None or is_stateful(self.node.dataset):
            return
        kept.told = True
        if lost := [text for _, text in kept.lost()]:
            warn(
                f"the loader's states do not hold {', '.join(lost)[:1000]}: what that keeps cannot be taken down, and "
                f"may not be what it was before the first epoch. If what a {type(self.node.dataset).__name__} gives "
                "depends on it, a resumed run goes on otherwise. Give the dataset state_dict() and load_state_dict()",
                UserWarning,
            )

    def _tell_if_read_whole(self) -> None:
        """A dataset that divides itself has asked by now which worker it is in, or the user's worker_init_fn has."""
        warn, workers = self.context.warn_once, self._workers
        if warn is not None and self.context.local_shard not in read_infos:
            warn(
                f"{type(self.node.dataset).__name__} has given its first sample and not asked get_worker_info(): if it "
                f"does not divide itself, every sample comes {workers} times, once from each worker. Ask it, and keep "
                "one sample of each info.num_workers (itertools.islice(samples, info.id, None, info.num_workers)); or "
                "give DataLoader IterableWrapper(dataset).sharding_filter() of torchpipe.iter; or take num_workers=1. "
                "If it divides itself, or each worker is meant to give all, ignore ReplicatedSourceWarning",
                ReplicatedSourceWarning,
            )


def batch_graph(
    dataset: Any,
    batch_size: int | None,
    drop_last: bool,
    collate_fn: Callable[[Any], Any],
    *,
    workers: int,
    as_torch: bool,
    base_seed: int,
    begins: list[dict[str, Any]] | None = None,
    kept: ObjectTracker | None = None,
) -> IterDataPipe[Any]:
    """The graph that makes batches of ``dataset``, which divides itself: a graph of nodes, or any other by workers.

    ``workers``: how many those are; 0 where the user's own process is none. ``begins``: with what a dataset that has a
    state begins. ``kept``: as the dataset was made, where it has been used since.
    """
    graph: Any = dataset
    if not isinstance(dataset, TorchIterDataPipe):
        source = _Source(dataset, deepcopy=False)
        kept = kept or kept_of(dataset)
        graph = WorkersOwn(
            source, dataset, workers=workers > 0, as_torch=as_torch, base_seed=base_seed, begins=begins, kept=kept
        )
    elif not isinstance(dataset, IterDataPipe):
        graph = _Source(dataset)
        if workers and divides_itself(dataset, workers):
            graph = WorkersOwn(graph, dataset, workers=True, as_torch=as_torch, base_seed=base_seed)
    if batch_size is not None:
        graph = graph.batch(batch_size, drop_last=drop_last, wrapper_class=list)
    return _Batches(graph, collate_fn, workers=workers > 0)


def saved_shards(saved: dict[str, Any] | None) -> tuple[int, bool] | None:
    """(how many shards the state has, were they workers?), or None without one. Raises: StateError."""
    if saved is None:
        return None
    shards = stored_count(saved, "shards", MAX_SHARDS)
    if not shards or not isinstance(saved.get("stream"), dict):
        raise StateError("the state is damaged: it has no position of an iterable dataset. Use an older checkpoint")
    return shards, saved.get("workers") is True


def check_ranks(saved: dict[str, Any], rank: int, world_size: int) -> None:
    """Raises: StateMismatchError for the state of another rank's stream."""
    theirs = saved.get("ranks", [0, 1])
    if theirs != [rank, world_size]:
        raise StateMismatchError(
            f"the state is of rank {theirs!r:.40} (which, and of how many), and this is {[rank, world_size]}: each "
            "rank goes on from its own, with as many ranks"
        )


class IterableBatches(StreamHanding, Batches):
    """``start.delivered`` batches are before the first; ``start.state`` is what :meth:`position` gave.

    ``service`` has been given the graph; it is ended with the epoch, unless ``keeps``: its workers are to persist.
    ``begins``: what a state says that the dataset begins with. ``goes_on``: it is used in the next epoch as this one
    leaves it. ``here``: the dataset, if it has a state and is read in
    this process, by the loop itself: whoever has used it up goes back to where it was before the first batch.
    ``stands``: where the stream begins before its first batch, in which what the user has set since counts.
    """

    def __init__(
        self,
        service: ReadingServiceInterface,
        start: EpochStart,
        *,
        workers: bool,
        keeps: bool = False,
        begins: list[dict[str, Any]] | None = None,
        here: Any = None,
        goes_on: bool = False,
        stands: Callable[[], dict[str, Any] | None] = lambda: None,
    ) -> None:
        self._begins = begins
        self._goes_on = goes_on
        self._stands = stands
        self._start = start
        self._service = service
        self._keeps = keeps
        self._workers = workers
        self._shards = start.num_shards
        self._seed = start.seed
        self._ranks = [start.rank, start.world_size]
        if begins is None and here is not None:
            # With the global random states that it is going to see, which may be part of its state; before its first
            # iter(), it may have none to tell
            with suppress(Exception):
                told = GlobalRandom((start.seed, start.epoch, start.rank)).within(here.state_dict)  # a single shard's
                self._begins = [{"dataset": copy.deepcopy(told), "iterator": None}]
        super().__init__(service.initialize_iteration(start), start.delivered)

    def merges(self) -> tuple[MergeStats, ...]:
        return merges_of(self.stream)

    def figures(self) -> ServiceFigures:
        return self._service.figures()

    def position(self) -> dict[str, Any]:
        stream = super().position() if self.number else self._stands() or super().position()
        position = {"stream": stream, "shards": self._shards, "workers": self._workers, "seed": self._seed}
        if self._ranks != [0, 1]:
            position["ranks"] = self._ranks
        if self.number:
            return position
        return position if self._begins is None else position | {"begins": self._begins}

    @property
    def processes(self) -> list[Any]:
        return getattr(self._service, "processes", [])

    def exact(self, position: dict[str, Any]) -> dict[str, Any]:
        start = replace(self._start, state=position["stream"])
        return position | {"stream": self._service.exact_position(start)}

    def between(self, position: dict[str, Any]) -> list[Cursor] | None:
        return None if self._merge is None or not self._goes_on else self._merge.between(position["stream"])

    def close(self) -> None:
        super().close()
        self._service.finalize_iteration()
        if not self._keeps:
            self._service.finalize()
