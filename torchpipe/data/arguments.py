"""The checks of a ``DataLoader``'s arguments beyond those of torch's loader. Runs in the user's process.

The private names of torch's loader that trainers and tools ask for, with our answers. In the user's process.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch.utils.data import IterDataPipe

from torchpipe.data import processes, threads
from torchpipe.device import DeviceOptions
from torchpipe.errors import GraphError
from torchpipe.node.iterator import is_stateful
from torchpipe.node.traits import walk
from torchpipe.node.validate import check_choice

__all__ = ["FetchBy", "NamesForTools", "check_arguments", "check_fetch", "check_shuffle", "device_options"]

FetchBy: TypeAlias = Literal["batches", "samples"]

_MOST_WORKERS = 4096


def check_arguments(
    *,
    num_workers: int,
    prefetch_factor: int | None,
    timeout: float,
    persistent_workers: bool,
    multiprocessing_context: Any,
    worker_seeding: str,
    worker_method: Any,
    autotune: object,
    fetch: str,
) -> None:
    """Raises: ValueError for what contradicts itself or can have no effect."""
    check_choice("worker_seeding", worker_seeding, ("batch", "torch"))
    if worker_method not in ("multiprocessing", "thread"):
        processes.check_worker_method(worker_method)
        if multiprocessing_context is not None:
            raise ValueError(
                f"worker_method={worker_method!r} says by itself how workers start: leave out "
                f"multiprocessing_context={multiprocessing_context!r}"
            )
    threads.check_arguments(worker_method, worker_seeding, multiprocessing_context)
    if autotune and worker_method == "thread":
        raise ValueError("autotune chooses among worker processes, and worker_method='thread' has none: leave one out")
    check_choice("fetch", fetch, ("batches", "samples"))
    if num_workers > _MOST_WORKERS:
        raise ValueError(f"num_workers={num_workers} is more than {_MOST_WORKERS}: is it meant to be prefetch_factor?")
    if num_workers and prefetch_factor == 0:
        raise ValueError("prefetch_factor=0: a worker that may make no batch ahead never makes one. Give 1 or more")
    if not num_workers and timeout > 0:
        raise ValueError(
            f"timeout={timeout} needs workers: with num_workers=0 batches are made in your own thread, which "
            "nothing interrupts"
        )
    if worker_seeding == "torch" and persistent_workers:
        raise ValueError(
            "worker_seeding='torch' goes with persistent_workers=False: torch seeds a persistent worker once, and no "
            "state can say where its generators stand epochs later. worker_seeding='batch' goes with both"
        )
    if fetch == "samples":
        _check_by_sample(worker_seeding, worker_method, autotune)


def check_shuffle(dataset: Any, shuffle: object) -> None:
    """Raises: GraphError for a graph that has nothing to shuffle. torch's loader warns, and reads it in order."""
    if not shuffle or not isinstance(dataset, IterDataPipe):
        return
    if not any(callable(getattr(type(node), "set_shuffle", None)) for node in walk(dataset)):
        raise GraphError(
            "shuffle=True switches on the shuffle() of a graph, and this one has none: put .shuffle(buffer_size=...) "
            "into it, before the sharding point"
        )


def device_options(device: Any) -> DeviceOptions | None:
    """The options of the loader's device stage. Raises: ValueError for those that its state would have to hold."""
    options = DeviceOptions.given(device)
    others = [] if options is None else [name for name in options.changed() if name != "device_prefetch"]
    if others:
        raise ValueError(
            f"a DataLoader's device stage has device_prefetch alone, and {', '.join(others)} are options of a graph's: "
            "use DataLoader2 with a reading service, or to_device()"
        )
    return options


def _check_by_sample(worker_seeding: str, worker_method: Any, autotune: object) -> None:
    if worker_seeding == "torch":
        raise ValueError(
            "fetch='samples' seeds random numbers for each sample, and worker_seeding='torch' once for each worker: "
            "leave one out"
        )
    if worker_method not in ("multiprocessing", "thread"):
        raise ValueError(
            f"fetch='samples' hands samples from worker to worker through this process, and worker_method="
            f"{worker_method!r} may run them on other machines: leave one out"
        )
    if autotune:
        raise ValueError(
            "autotune measures batches, and with fetch='samples' workers make parts of them: leave one out"
        )


def check_fetch(fetch: FetchBy, dataset: Any, *, batched: bool) -> None:
    """Raises: ValueError if samples of ``dataset`` cannot be made one by one, or there are no batches of them."""
    if fetch != "samples":
        return
    name = type(dataset).__name__
    if not batched:
        raise ValueError(
            "fetch='samples' divides the batches of a map-style dataset among workers: give a batch_size or a "
            f"batch_sampler, and a dataset with __getitem__, or leave it out (this is a {name})"
        )
    if getattr(dataset, "__getitems__", None):
        raise ValueError(
            f"fetch='samples' asks for samples one by one, and {name} has __getitems__, which reads a whole batch: "
            "leave fetch out (of torch's Subset, give its dataset, and its indices to a sampler)"
        )
    if is_stateful(dataset):
        raise ValueError(
            f"fetch='samples' lets any worker make any sample, and {name} has a state of its own (state_dict), which "
            "would belong to no batch: leave one out"
        )


class NamesForTools:
    """Mixed into the loader, before torch's."""

    _index_sampler: Any
    _pool: Any  # the workers that persist
    _live: Any
    shutdown: Any

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Accelerate takes such a loader as it is; otherwise it would rebuild it as one of torch's, without state.

        Raises: RuntimeError where Accelerate would have divided the data among processes, and nothing here does.
        """
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            sampler = self._index_sampler
            chain = [sampler, getattr(sampler, "sampler", None)]
            if not any(hasattr(part, "num_replicas") or hasattr(part, "rank") for part in chain):
                raise RuntimeError(
                    "Accelerate does not divide a torchpipe DataLoader among processes: give it a sampler that does "
                    "(torch.utils.data.DistributedSampler), or every process has all the data"
                )
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """Accelerate says what is said here anyhow."""

    @property
    def _iterator(self) -> Any:
        """The keeper of the workers that persist, under the name that tools know; None without such workers."""
        return (self._live or _Keeper(self)) if vars(self).get("_pool") is not None else None

    @_iterator.setter
    def _iterator(self, value: None) -> None:
        """Tools set None to end the workers; torch's constructor does before there are any."""
        if vars(self).get("_pool") is not None:
            self.shutdown()


class _Keeper:
    """Stands for the last iterator, which nobody holds any more, in what tools ask it for."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    @property
    def _workers(self) -> list[Any]:
        return list(self._loader._pool.processes)

    def _shutdown_workers(self) -> None:
        self._loader.shutdown()
