"""``SequentialReadingService``: several services for one graph. Runs in the main process."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from torchpipe.execution.preparing import PreparingReadingService, executable, handed_on
from torchpipe.execution.reading_service import EpochStart, ReadingServiceInterface
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import DataPipe

__all__ = ["SequentialReadingService"]


class SequentialReadingService(ReadingServiceInterface):
    """The last service executes the graph; those before it prepare, in the order given.

    ``SequentialReadingService(DistributedReadingService(), MultiProcessingReadingService(4))`` gives each rank its part
    of the stream, produced by four worker processes of its own. What the executing one can be asked (``nodes()``,
    ``worker_pids()``), this can.

    Raises: ValueError without a service, or with one given twice; TypeError if one before the last executes graphs
    itself; ValueError, when a loader is built, if two of them divide the stream among ranks.
    """

    def __init__(self, *reading_services: ReadingServiceInterface) -> None:
        if not reading_services:
            raise ValueError("SequentialReadingService needs at least one reading service, the one that executes")
        for service in reading_services:
            if not isinstance(service, ReadingServiceInterface):
                raise TypeError(f"SequentialReadingService takes reading services, got {service!r}")
        if len({id(service) for service in reading_services}) < len(reading_services):
            raise ValueError(
                "SequentialReadingService got the same reading service twice: make a new one for each argument"
            )
        self._services = [executable(service.take()) for service in reading_services]
        for service, following in pairwise(self._services):
            if not isinstance(service, PreparingReadingService):
                raise TypeError(
                    f"{type(service).__name__} executes the graph itself, so it must be the last and the only such "
                    f"service; got {', '.join(type(item).__name__ for item in reading_services)}. Put it last, after "
                    "those that prepare (DistributedReadingService)"
                )
            service._executing = following
        self._executing = self._services[-1]
        self._first = self._services[0]
        self._ranked = self._executing  # or who of them divides the stream, once initialized

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        try:
            datapipe = self._first.initialize(datapipe)
            ranked = [item for item in self._services if item.world_size > 1 or item.total_shards is not None]
            if len(ranked) > 1:
                names = " and ".join(type(item).__name__ for item in ranked)
                raise ValueError(f"{names} each divide the stream among ranks: keep one of them")
        except BaseException:
            self.finalize()
            raise
        self._ranked = ranked[0] if ranked else self._executing
        return datapipe

    default_num_shards = handed_on("_executing")
    fixed_num_shards = handed_on("_executing")
    measuring = handed_on("_executing")
    figures = handed_on("_executing")

    fixed_seed = handed_on("_ranked")
    agrees = handed_on("_ranked")
    rank = handed_on("_ranked")
    world_size = handed_on("_ranked")
    total_shards = handed_on("_ranked")
    states = handed_on("_ranked")
    agreed_length = handed_on("_ranked")
    length = handed_on("_ranked")
    agreed_position = handed_on("_ranked")
    gather = handed_on("_ranked")

    local_iteration = handed_on("_first")
    exact_position = handed_on("_first")
    explain = handed_on("_first")

    def initialize_iteration(self, start: EpochStart) -> NodeIterator[Any]:
        return self._first.initialize_iteration(start)

    def finalize_iteration(self) -> None:
        self._first.finalize_iteration()

    def finalize(self) -> None:
        self._first.finalize()

    @property
    def names_ranks(self) -> bool:
        return any(service.names_ranks for service in self._services)

    def settle_seed(self, drawn: int) -> int:
        for service in self._services:
            drawn = service.settle_seed(drawn)
        return drawn

    def prepare_iteration(self, start: EpochStart) -> EpochStart:
        for service in self._services:
            start = service.prepare_iteration(start)
        return start

    def __getattr__(self, name: str) -> Any:
        """The attributes of the executing service alone: ``nodes()``, ``worker_pids()``, ``restarts``."""
        if name.startswith("_") or not hasattr(self._executing, name):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}", name=name, obj=self)
        return getattr(self._executing, name)
