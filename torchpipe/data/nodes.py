"""The sources of the loader's graph: of a map-style dataset what is dealt, of an iterable one what it yields.

Runs in workers, and in the user's process where a stream of workers' shards is made there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch.utils.data._utils.worker import _generate_state

from torchpipe.data.fetch import (
    Failure,
    Fetch,
    TimedFetch,
    WorkerInitFn,
    collating_in,
    make_worker_info,
    set_worker_info,
)
from torchpipe.errors import StateError
from torchpipe.execution.dispatch import DispatchSupply
from torchpipe.execution.epoch import WorkerInfo
from torchpipe.iter._shared.collating import stack_without_files
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator, is_stateful
from torchpipe.randomness.global_random import BatchRandom, GlobalRandom
from torchpipe.stats.tracing import Tracing

__all__ = ["FetchDealt", "InitWorker", "seed_as_torch", "seed_worker"]


def seed_as_torch(base_seed: int, worker: int) -> None:
    """Seed the global random states that are in place as torch's loader seeds those of its worker."""
    import random

    import numpy as np

    random.seed(base_seed + worker)
    torch.default_generator.manual_seed(base_seed + worker)
    np.random.seed(_generate_state(base_seed, worker))  # type: ignore[no-untyped-call]


class InitWorker:
    """What happens in a worker before its first item: ``get_worker_info()`` is set, and the user's function called.

    Called as a service's ``worker_init_fn``, with the graph; it returns it.
    """

    def __init__(self, user_fn: WorkerInitFn | None, dataset: Any, base_seed: int) -> None:
        self.user_fn = user_fn
        self.dataset = dataset
        self.base_seed = base_seed

    def __call__(self, graph: Any, info: WorkerInfo) -> Any:
        worker = info.worker_id
        stack_without_files()
        set_worker_info(make_worker_info(worker, info.num_workers, self.base_seed + worker, self.dataset))
        seed_as_torch(self.base_seed, worker)
        if self.user_fn is not None:
            try:
                self.user_fn(worker)
            except Exception as error:
                note = f"torchpipe: raised by worker_init_fn (pid {os.getpid()})"
                raise Failure(error, f"in DataLoader worker process {worker}", note).rebuild() from None
        with suppress(StateError):  # numpy's generator is of another kind now
            _seeded[worker] = GlobalRandom.present().to_dict()
        return graph


_seeded: dict[int, dict[str, Any]] = {}  # in a worker process: the global random states that its shards begin with


def seed_worker(base_seed: int, worker: int) -> None:
    """Seed the global random states in place as torch does, and then as the user's ``worker_init_fn`` has done."""
    if worker in _seeded:
        GlobalRandom.of(_seeded[worker]).enter()
    else:
        seed_as_torch(base_seed, worker)


class FetchDealt(IterDataPipe[Any]):
    """Makes a batch of each entry that is dealt: (the batch's number, its indices).

    Before each one, the global random states are seeded from (seed, epoch, number); with ``as_torch``, once, as torch
    seeds a worker's. State: none, but for that of a dataset that has one, and with ``as_torch``.
    """

    divides = True

    def __init__(self, fetch: Fetch, *, as_torch: bool, base_seed: int) -> None:
        self.fetch = fetch
        self.as_torch = as_torch
        self.base_seed = base_seed

    @property
    def title(self) -> str:
        """What an error calls it: users know their dataset."""
        return f"the loader's {type(self.fetch.dataset).__name__}"

    @property
    def stateless(self) -> bool:
        """Does a batch depend on its entry alone?"""
        return not self.as_torch and not is_stateful(self.fetch.dataset)

    def iterate(self, context: Context) -> NodeIterator[Any]:
        return _FetchIterator(self, context)


class _FetchIterator(NodeIterator[Any]):
    node: FetchDealt
    apart = True  # its steps are timed, each for itself

    def __init__(self, node: FetchDealt, context: Context) -> None:
        super().__init__(node, context)
        self._begun = False

    def get_state(self) -> dict[str, Any]:
        dataset = self.node.fetch.dataset
        state = {"begun": self._begun}
        return state | {"dataset": dataset.state_dict()} if is_stateful(dataset) else state

    def set_state(self, state: dict[str, Any]) -> None:
        self._begun = state["begun"] is True
        if is_stateful(self.node.fetch.dataset):
            self.node.fetch.dataset.load_state_dict(state["dataset"])

    def run(self) -> Iterator[Any]:
        supply, context, node = self.context.supply, self.context, self.node
        assert isinstance(supply, DispatchSupply)
        worker, trace = context.local_shard, context.trace
        fetch = TimedFetch(node.fetch, trace.sheet) if isinstance(trace, Tracing) else node.fetch
        collate_fn = collating_in(fetch.collate_fn, context.memory)
        where = f"in DataLoader worker process {worker}"
        if node.as_torch and not self._begun:
            seed_worker(node.base_seed, worker)
        self._begun = True
        states = BatchRandom()
        made: list[Any] = []  # nothing here may hold a batch once it is handed on: it is sent from where it was made
        while (entry := supply.take(worker)) is not None:
            number, indices = entry[0]  # type: ignore[index]  # no marks are dealt
            if not node.as_torch:
                states.seed(context.seed, context.epoch, number)
            try:
                made.append(fetch(indices, collate_fn))
            except Exception as error:
                fetch.explain(error, number, indices)
                made.append(Failure(error, where, f"torchpipe: in worker {worker} (pid {os.getpid()})"))
            yield made.pop()
