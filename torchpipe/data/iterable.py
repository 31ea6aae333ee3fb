"""Batches of an iterable dataset: a graph of nodes, run by the reading services that run any graph.

Runs in the user's process; :class:`WorkersOwn` in workers as well.

The dataset divides itself, by ``get_worker_info()``: its workers are shards, and their number belongs to the stream. A
state therefore says how many there were, and goes on with as many, in however many processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterDataPipe as TorchIterDataPipe

from torchpipe.data.batches import Batches
from torchpipe.data.fetch import WorkerInitFn, make_worker_info, set_worker_info
from torchpipe.data.nodes import seed_as_torch
from torchpipe.errors import StateError
from torchpipe.execution.reading_service import EpochStart, ReadingServiceInterface
from torchpipe.execution.worker_info import WorkerInfo
from torchpipe.iter import IterableWrapper
from torchpipe.iter.collator import stack_without_files
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator, stored_count
from torchpipe.node.validate import MAX_SHARDS

__all__ = ["InitShard", "IterableBatches", "WorkersOwn", "batch_graph", "saved_shards"]


class WorkersOwn(IterDataPipe[Any]):
    """Hands on all items of its input in each shard, to which it is a worker of torch's: ``get_worker_info()`` says so.

    Without ``workers``, it is none's.
    """

    divides = True

    def __init__(self, datapipe: Any, dataset: Any, *, workers: bool, as_torch: bool, base_seed: int) -> None:
        self.datapipe = datapipe
        self.dataset = dataset
        self.workers = workers
        self.as_torch = as_torch
        self.base_seed = base_seed

    def iterate(self, context: Context) -> NodeIterator[Any]:
        return _OwnIterator(self, context, self.datapipe)


class _OwnIterator(NodeIterator[Any]):
    node: WorkersOwn
    begun = False

    def get_state(self) -> dict[str, Any]:
        return {"begun": self.begun}

    def set_state(self, state: dict[str, Any]) -> None:
        self.begun = state["begun"] is True

    def run(self) -> Iterator[Any]:
        node, context = self.node, self.context
        info = None
        if node.workers:
            info = make_worker_info(
                context.local_shard,
                context.num_shards // context.world_size,
                node.base_seed + context.local_shard,
                node.dataset,
            )
        if node.as_torch and not self.begun:
            seed_as_torch(node.base_seed, context.local_shard)
        self.begun = True
        stream = self.source.items()
        while True:
            set_worker_info(info)  # a process may host several of them
            try:
                item = next(stream)
            except StopIteration:
                return
            finally:
                if not node.workers or context.threads:
                    set_worker_info(None)
            yield item


class InitShard:
    """Calls the user's ``worker_init_fn`` with the worker's number, with ``get_worker_info()`` set."""

    def __init__(self, user_fn: WorkerInitFn | None, dataset: Any, base_seed: int) -> None:
        self.user_fn = user_fn
        self.dataset = dataset
        self.base_seed = base_seed

    def __call__(self, node: Any, info: WorkerInfo) -> Any:
        stack_without_files()
        if self.user_fn is not None:
            seed = self.base_seed + info.worker_id
            set_worker_info(make_worker_info(info.worker_id, info.num_workers, seed, self.dataset))
            seed_as_torch(self.base_seed, info.worker_id)
            self.user_fn(info.worker_id)
        return node


def batch_graph(
    dataset: Any,
    batch_size: int | None,
    drop_last: bool,
    collate_fn: Callable[[Any], Any],
    *,
    workers: bool,
    as_torch: bool,
    base_seed: int,
) -> IterDataPipe[Any]:
    """The graph that makes batches of ``dataset``, which divides itself: a graph of nodes, or any other by workers."""
    graph: Any = dataset
    if not isinstance(dataset, TorchIterDataPipe):
        source = IterableWrapper(dataset, deepcopy=False)
        graph = WorkersOwn(source, dataset, workers=workers, as_torch=as_torch, base_seed=base_seed)
    elif not isinstance(dataset, IterDataPipe):
        graph = IterableWrapper(dataset)
    if batch_size is not None:
        graph = graph.batch(batch_size, drop_last=drop_last, wrapper_class=list)
    return graph.collate(collate_fn)  # type: ignore[no-any-return]


def saved_shards(saved: dict[str, Any] | None) -> tuple[int, bool] | None:
    """(how many shards the state has, were they workers?), or None without one. Raises: StateError."""
    if saved is None:
        return None
    shards = stored_count(saved, "shards", MAX_SHARDS)
    if not shards or not isinstance(saved.get("stream"), dict):
        raise StateError("the state is damaged: it has no position of an iterable dataset. Use an older checkpoint")
    return shards, saved.get("workers") is True


class IterableBatches(Batches):
    """``start.delivered`` batches are before the first; ``start.state`` is what :meth:`position` gave."""

    def __init__(
        self, graph: IterDataPipe[Any], service: ReadingServiceInterface, start: EpochStart, *, workers: bool
    ) -> None:
        self.number = start.delivered
        self._service = service
        self._workers = workers
        self._shards = start.num_shards
        self._seed = start.seed
        service.initialize(graph)
        self._stream = service.initialize_iteration(start)
        self._items = self._stream.items()

    def take(self) -> Any:
        batch = next(self._items)
        self.number += 1
        return batch

    def position(self) -> dict[str, Any]:
        position = {"stream": self._stream.state_dict(), "shards": self._shards, "workers": self._workers}
        return position | {"seed": self._seed}

    @property
    def processes(self) -> list[Any]:
        return getattr(self._service, "processes", [])

    def interrupt(self) -> None:
        self._stream.interrupt()

    def close(self) -> None:
        self._stream.close()
        self._service.finalize_iteration()
        self._service.finalize()
