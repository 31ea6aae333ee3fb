"""``SequentialReadingService``: several services for one graph. Runs in the main process."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

from torchpipe.execution.interface import States, SubstitutesOf
from torchpipe.execution.preparing import Begin, PreparingReadingService, executable
from torchpipe.execution.reading_service import EpochStart, ReadingServiceInterface
from torchpipe.execution.service_figures import ServiceFigures
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
        *preparing, self._executing = [executable(service.take()) for service in reading_services]
        self._preparing: list[PreparingReadingService] = []
        for service in preparing:
            if not isinstance(service, PreparingReadingService):
                raise TypeError(
                    f"{type(service).__name__} executes the graph itself, so it must be the last and the only such "
                    f"service; got {', '.join(type(item).__name__ for item in reading_services)}. Put it last, after "
                    "those that prepare (DistributedReadingService)"
                )
            self._preparing.append(service)
        self._ranked: ReadingServiceInterface = self._executing

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        try:
            for service in self._preparing:
                datapipe = service.prepare(datapipe)
            datapipe = self._executing.initialize(datapipe)
            services = (*self._preparing, self._executing)
            ranked = [item for item in services if item.world_size > 1 or item.total_shards is not None]
            if len(ranked) > 1:
                names = " and ".join(type(item).__name__ for item in ranked)
                raise ValueError(f"{names} each divide the stream among ranks: keep one of them")
        except BaseException:
            self.finalize()
            raise
        self._ranked = ranked[0] if ranked else self._executing
        return datapipe

    @property
    def default_num_shards(self) -> int:
        return self._executing.default_num_shards

    @property
    def fixed_num_shards(self) -> int | None:
        return self._executing.fixed_num_shards

    @property
    def fixed_seed(self) -> int | None:
        return self._ranked.fixed_seed

    def settle_seed(self, drawn: int) -> int:
        for service in (*self._preparing, self._executing):
            drawn = service.settle_seed(drawn)
        return drawn

    @property
    def names_ranks(self) -> bool:
        return any(service.names_ranks for service in (*self._preparing, self._executing))

    @property
    def agrees(self) -> bool:
        return self._ranked.agrees

    @property
    def rank(self) -> int:
        return self._ranked.rank

    @property
    def world_size(self) -> int:
        return self._ranked.world_size

    @property
    def total_shards(self) -> int | None:
        return self._ranked.total_shards

    @property
    def states(self) -> States:
        return self._ranked.states

    def agreed_length(self, lengths: list[int]) -> int:
        return self._ranked.agreed_length(lengths)

    def length(self, datapipe: DataPipe, num_shards: int) -> int:
        return self._ranked.length(datapipe, num_shards)

    def agreed_position(self, delivered: list[int]) -> int:
        return self._ranked.agreed_position(delivered)

    def gather(self, mine: Any) -> list[Any]:
        return self._ranked.gather(mine)

    def prepare_iteration(self, start: EpochStart) -> EpochStart:
        for service in (*self._preparing, self._executing):
            start = service.prepare_iteration(start)
        return start

    def initialize_iteration(self, start: EpochStart) -> NodeIterator[Any]:
        begin: Begin = self._executing.initialize_iteration
        for service in reversed(self._preparing):
            begin = partial(service.run_iteration, begin=begin)
        return begin(start)

    def local_iteration(self, start: EpochStart, substitutes_of: SubstitutesOf | None = None) -> NodeIterator[Any]:
        for service in self._preparing:
            start = service.hosting(start)
        return self._executing.local_iteration(start, substitutes_of)

    def exact_position(self, start: EpochStart, *, may_replay: bool = False) -> dict[str, Any]:
        for service in self._preparing:
            start = service.hosting(start)
        return self._executing.exact_position(start, may_replay=may_replay)

    def finalize_iteration(self) -> None:
        with ExitStack() as stack:  # each is called, whatever the others raise
            for service in reversed(self._preparing):
                stack.callback(service.finalize_iteration)
            stack.callback(self._executing.finalize_iteration)

    def finalize(self) -> None:
        with ExitStack() as stack:
            for service in self._preparing:
                stack.callback(service.release)
            stack.callback(self._executing.finalize)

    @property
    def measuring(self) -> bool:
        return self._executing.measuring

    @measuring.setter
    def measuring(self, value: bool) -> None:
        self._executing.measuring = value

    def figures(self) -> ServiceFigures:
        return self._executing.figures()

    def __getattr__(self, name: str) -> Any:
        """What the executing service alone has: ``nodes()``, ``worker_pids()``, ``restarts``."""
        if name.startswith("_") or not hasattr(self._executing, name):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}", name=name, obj=self)
        return getattr(self._executing, name)

    def explain(self, num_shards: int | None = None) -> str:
        return "\n".join([*(service.describe() for service in self._preparing), self._executing.explain(num_shards)])
