"""The sources of the loader's graph: of a map-style dataset what is dealt, of an iterable one what it yields.

Runs in workers, and in the user's process where a stream of workers' shards is made there.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch.utils.data import Dataset

from torchpipe.compat.torch_private import numpy_seed_of
from torchpipe.data.fetch import (
    Failure,
    Fetch,
    TimedFetch,
    WorkerInitFn,
    collating_in,
    make_part,
    make_worker_info,
    read_infos,
    set_worker_info,
)
from torchpipe.data.order.samplers import load_into, stands_at
from torchpipe.errors import StateError
from torchpipe.execution.dispatch import DispatchSupply
from torchpipe.execution.epoch import WorkerInfo
from torchpipe.iter._shared.batches import makes_new_tensors, stack_without_files
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator, is_stateful
from torchpipe.randomness.global_random import BatchRandom, RandomStates, may_change_states
from torchpipe.stats.tracing import Tracing

__all__ = ["FetchAssigned", "InitWorker", "attributes_of", "put_attributes", "seed_as_torch", "seed_worker"]


def seed_as_torch(base_seed: int, worker: int) -> None:
    """Seed the global random states that are in place as torch's loader seeds those of its worker."""
    import random

    import numpy as np

    random.seed(base_seed + worker)
    torch.default_generator.manual_seed(base_seed + worker)
    np.random.seed(numpy_seed_of(base_seed, worker))  # type: ignore[no-untyped-call]


class InitWorker:
    """The beginning of a worker, before its first item: ``get_worker_info()`` is set, and the user's function called.

    Called as a service's ``worker_init_fn``, with the graph; it returns it, or, with ``copies``, a copy: so that each
    of several workers that one process hosts has a dataset of its own, as in processes of their own. ``here``: in the
    user's process, which is a worker meanwhile and no longer. A worker that is forked in the place of a dead one gets
    the attributes that the dataset had when the workers were made, and not today's.
    """

    def __init__(
        self,
        user_fn: WorkerInitFn | None,
        dataset: Any,
        base_seed: int,
        *,
        copies: bool = False,
        here: bool = False,
    ) -> None:
        self.user_fn = user_fn
        self.dataset = dataset
        self.base_seed = base_seed
        self.copies = copies
        self.here = here
        self._attributes = [] if here else attributes_of(dataset)

    def __getstate__(self) -> dict[str, Any]:
        """The pickled part, which is as when the workers were made: there is nothing to put back."""
        return vars(self) | {"_attributes": []}

    def __call__(self, graph: Any, info: WorkerInfo) -> Any:
        worker, dataset = info.worker_id, self.dataset
        put_attributes(self._attributes)
        if self.copies:
            graph, dataset = self._copies_of(graph, info.num_workers)
        if not self.here:
            stack_without_files()
        note = read_infos.discard if self.user_fn is None else read_infos.add  # a function may divide by its argument
        note(worker)
        own = make_worker_info(worker, info.num_workers, self.base_seed + worker, dataset)
        before = set_worker_info(own)
        try:
            seed_as_torch(self.base_seed, worker)
            if self.user_fn is not None:
                self._call(self.user_fn, worker)
            with suppress(StateError):  # numpy's generator is of another kind now
                _seeded[self.base_seed, worker] = RandomStates.now().to_dict()
        finally:
            if self.here:
                set_worker_info(before)
        if not self.here:
            _infos[worker] = own
            if is_stateful(dataset):
                with suppress(Exception):  # it may have nothing to tell before it is used
                    _made[worker] = copy.deepcopy(dataset.state_dict())
        return graph

    def _call(self, user_fn: WorkerInitFn, worker: int) -> None:
        try:
            user_fn(worker)
        except Exception as error:
            note = f"torchpipe: raised by worker_init_fn (pid {os.getpid()})"
            raise Failure(error, f"in DataLoader worker process {worker}", note).error from None

    def _copies_of(self, graph: Any, workers: int) -> Any:
        """(the graph, the dataset in it). Raises: TypeError for one that cannot be copied."""
        try:
            return copy.deepcopy((graph, self.dataset))
        except Exception as error:
            raise TypeError(
                f"{workers} workers' parts of the {type(self.dataset).__name__} are read in fewer processes, so that "
                f"each part needs a copy of the dataset, which cannot be copied ({type(error).__name__}: {error}). "
                f"Load the state with num_workers={workers}, leave autotune out, or open files, locks, connections and "
                "the like in __iter__ or worker_init_fn"
            ) from error


def put_attributes(attributes: list[tuple[Any, dict[str, Any]]]) -> None:
    """Put back what :func:`attributes_of` gave: the same objects."""
    for owner, its in attributes:
        vars(owner).clear()
        vars(owner).update(its)


def attributes_of(dataset: Any) -> list[tuple[Any, dict[str, Any]]]:
    """The attributes of the dataset, and of datasets that it holds."""
    found: dict[int, tuple[Any, dict[str, Any]]] = {}  # by id
    left = [dataset]
    while left:
        owner = left.pop()
        if not isinstance(owner, Dataset) or id(owner) in found:
            continue
        found[id(owner)] = owner, dict(vars(owner))
        for value in vars(owner).values():
            held = value if isinstance(value, list | tuple) else (value,)
            left += [item for item in held if isinstance(item, Dataset)]
    return list(found.values())


# In a worker process: the global random states that its shards begin with, and what get_worker_info() says to each
_seeded: dict[tuple[int, int], dict[str, Any]] = {}
_infos: dict[int, Any] = {}
_made: dict[int, Any] = {}  # what their datasets said of themselves then: where a position at the start begins


def seed_worker(base_seed: int, worker: int) -> None:
    """Seed the global random states in place as torch does, and then as the user's ``worker_init_fn`` has done."""
    if not may_change_states():  # a thread that takes from a loader without workers: they are the process's
        return
    if (base_seed, worker) in _seeded:
        RandomStates.from_dict(_seeded[base_seed, worker]).put()
    else:
        seed_as_torch(base_seed, worker)


class FetchAssigned(IterDataPipe[Any]):
    """Makes a batch of each entry that is dealt: (the batch's number, its indices).

    Before each one, the global random states are seeded from (seed, epoch, number); with ``as_torch``, once, as torch
    seeds a worker's. If ``fetch`` is ``by_sample``, entries are tasks, and seeds those of samples. State: none, but for
    that of a dataset that has one, and with ``as_torch``.
    """

    divides = True

    def __init__(self, fetch: Fetch, *, as_torch: bool, base_seed: int) -> None:
        self.fetch = fetch
        self.as_torch = as_torch
        self.base_seed = base_seed

    @property
    def node_title(self) -> str:
        """Users know their dataset."""
        return f"the dataset {type(self.fetch.dataset).__name__}"

    @property
    def stateless(self) -> bool:
        """True if a batch depends on its entry alone."""
        return not self.as_torch and not is_stateful(self.fetch.dataset)

    @property
    def yields_new_tensors(self) -> bool:  # type: ignore[override]
        return makes_new_tensors(self.fetch.collate_fn)

    def iterate(self, context: Context) -> NodeIterator[Any]:
        return _FetchIterator(self, context)


class _FetchIterator(NodeIterator[Any]):
    node: FetchAssigned
    untimed = True  # its steps are timed, each for itself

    def __init__(self, node: FetchAssigned, context: Context) -> None:
        super().__init__(node, context)
        self._begun = self._loaded = False
        self._own = None if node.as_torch else node.fetch.own_generators(context.warn_once)

    def get_state(self) -> dict[str, Any]:
        dataset = self.node.fetch.dataset
        state = {"begun": self._begun}
        return state | {"dataset": dataset.state_dict()} if is_stateful(dataset) else state

    def set_state(self, state: dict[str, Any]) -> None:
        self._begun, self._loaded = state["begun"] is True, True
        if is_stateful(self.node.fetch.dataset):
            self.node.fetch.dataset.load_state_dict(state["dataset"])

    def run(self) -> Iterator[Any]:
        supply, context, node = self.context.host.supply, self.context, self.node
        assert isinstance(supply, DispatchSupply)
        worker, trace = context.local_shard, context.host.trace
        fetch = TimedFetch(node.fetch, trace.sheet) if isinstance(trace, Tracing) else node.fetch
        collate_fn = collating_in(fetch.collate_fn, context.host.memory)
        where = f"in DataLoader worker process {worker}"
        if not self._loaded and worker in _made and not stands_at(fetch.dataset, _made[worker]):
            load_into(fetch.dataset, _made[worker])  # it has made batches before, which nobody was handed
        if node.as_torch and not self._begun:
            seed_worker(node.base_seed, worker)
        self._begun = True
        states = BatchRandom(self._own)
        made: list[Any] = []  # nothing here may hold a batch once it is handed on: it is sent from where it was made
        while (entry := supply.take(worker)) is not None:
            task = entry[0]  # type: ignore[index]  # no marks are dealt
            number, indices = (task.key, task.indices) if fetch.by_sample else task
            set_worker_info(_infos.get(worker))  # the process may host others
            try:
                if fetch.by_sample:
                    seed = partial(states.seed, context.seed, context.epoch)
                    made.append(make_part(task, fetch, collate_fn, seed, copies=True))
                else:
                    if not node.as_torch:
                        states.seed(context.seed, context.epoch, number)
                    made.append(fetch(indices, collate_fn))
            except Exception as error:
                fetch.explain(error, number, indices)
                made.append(Failure(error, where, f"torchpipe: in worker {worker} (pid {os.getpid()})"))
            yield made.pop()
