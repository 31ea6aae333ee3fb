"""The private names of torch's loader that trainers and tools ask for, with our answers. In the user's process."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["NamesForTools"]


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
