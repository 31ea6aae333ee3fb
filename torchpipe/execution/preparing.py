"""``PreparingReadingService``: the base of services that prepare what another one executes.

Runs in the main process. Services with torchdata's methods are made to prepare.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.execution.interface import SubstitutesOf
from torchpipe.execution.reading_service import EpochStart, InProcessReadingService, ReadingServiceInterface
from torchpipe.node.iterator import NodeIterator, StreamOver
from torchpipe.node.traits import DataPipe, is_node
from torchpipe.randomness.seeds import SeedGenerator, derive_seed

__all__ = ["Begin", "PreparingReadingService", "StreamOver", "executable", "handed_on"]

Begin: TypeAlias = Callable[[EpochStart], NodeIterator[Any]]
"""Begins an epoch in the services that follow."""


def handed_on(to: str) -> Any:
    """A member that the service in the attribute ``to`` answers."""
    return _HandedOn(to)


class _HandedOn:
    def __init__(self, to: str) -> None:
        self._to = to

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, service: Any, owner: type) -> Any:
        return self if service is None else getattr(getattr(service, self._to), self._name)

    def __set__(self, service: Any, value: Any) -> None:
        setattr(getattr(service, self._to), self._name, value)


class PreparingReadingService(ReadingServiceInterface):
    """Has a say in the graph, the start and the stream of an epoch that another service executes.

    It stands before that service in a :class:`SequentialReadingService`, which makes what follows its ``_executing``;
    alone, or as the last one, it executes the graph in process. Override what is needed: :meth:`prepare`,
    ``prepare_iteration``, :meth:`run_iteration`, :meth:`release`, :meth:`describe`, and ``rank``, ``world_size`` and
    ``agreed_length``. All are called in the user's thread, and so are pulls from the iterator that ``run_iteration``
    returns.
    """

    def __init__(self) -> None:
        self._executing: ReadingServiceInterface = InProcessReadingService()

    default_num_shards = handed_on("_executing")
    fixed_num_shards = handed_on("_executing")
    measuring = handed_on("_executing")
    figures = handed_on("_executing")
    finalize_iteration = handed_on("_executing")

    def prepare(self, datapipe: DataPipe) -> DataPipe:
        """Check the graph; what is returned is the graph for the services that follow."""
        return datapipe

    def hosting(self, start: EpochStart) -> EpochStart:
        """The epoch as it runs here, if other processes run parts of it."""
        return start

    def run_iteration(self, start: EpochStart, begin: Begin) -> NodeIterator[Any]:
        """The stream of an epoch, made of what ``begin(start)`` gives; its state is what ``start.state`` will be."""
        return begin(start)

    def release(self) -> None:
        """Let go of everything. Idempotent; a new epoch may still follow."""

    def describe(self) -> str:
        """A line for ``explain()``."""
        return f"prepared by {type(self).__name__}"

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        try:
            return self._executing.initialize(self.prepare(datapipe))
        except BaseException:
            self.finalize()
            raise

    def initialize_iteration(self, start: EpochStart) -> NodeIterator[Any]:
        stream: object = self.run_iteration(start, self._executing.initialize_iteration)
        if not isinstance(stream, NodeIterator):
            raise TypeError(
                f"{type(self).__name__}.run_iteration must return what begin(start) gives, or a NodeIterator "
                f"over it, got {stream!r:.60}: is a return missing?"
            )
        return stream

    def local_iteration(self, start: EpochStart, substitutes_of: SubstitutesOf | None = None) -> NodeIterator[Any]:
        return self._executing.local_iteration(self.hosting(start), substitutes_of)

    def exact_position(self, start: EpochStart, *, may_replay: bool = False) -> dict[str, Any]:
        return self._executing.exact_position(self.hosting(start), may_replay=may_replay)

    def finalize(self) -> None:
        try:
            self._executing.finalize()
        finally:
            self.release()

    def explain(self, num_shards: int | None = None) -> str:
        return f"{self.describe()}\n{self._executing.explain(num_shards)}"


def executable(service: ReadingServiceInterface) -> ReadingServiceInterface:
    """``service`` itself, or, if it has torchdata's methods, one that runs in process what it prepares."""
    begin = type(service).initialize_iteration
    defined = begin is not ReadingServiceInterface.initialize_iteration
    if defined and "seed_generator" not in inspect.signature(begin).parameters:
        return service
    return _Prepared(service, begin if defined else None)


_EPOCH_SEEDS = 7  # which use of an epoch's seed the key belongs to; part of the stream's definition


class _Prepared(PreparingReadingService):
    """Gives a service with torchdata's methods a place among ours. Its other attributes are that service's."""

    def __init__(self, service: ReadingServiceInterface, begin: Callable[..., Any] | None) -> None:
        super().__init__()
        self._service = service
        self._begin = begin

    def __getattr__(self, name: str) -> Any:
        if name == "_service":  # a half-built object has none
            raise AttributeError(name)
        return getattr(self._service, name)

    def prepare(self, datapipe: DataPipe) -> DataPipe:
        ready = self._service.initialize(datapipe)
        if is_node(ready):
            return ready
        if not hasattr(type(ready), "__iter__"):
            raise TypeError(
                f"{type(self._service).__name__}.initialize must return the datapipe, changed or not, got {ready!r}: "
                "is a return missing?"
            )
        return _as_node(ready)

    def run_iteration(self, start: EpochStart, begin: Begin) -> NodeIterator[Any]:
        if self._begin is not None:
            reset = self._begin(self._service, SeedGenerator(derive_seed(start.seed, start.epoch, _EPOCH_SEEDS)))
            if reset is not None:
                raise TypeError(
                    f"{type(self._service).__name__}.initialize_iteration returned {reset!r}: a function that changes "
                    "the graph for each epoch must be given as worker_reset_fn (reset_fn of InProcessReadingService)"
                )
        return begin(start)

    def finalize_iteration(self) -> None:
        try:
            super().finalize_iteration()
        finally:
            self._service.finalize_iteration()

    def release(self) -> None:
        self._service.finalize()

    def describe(self) -> str:
        return f"prepared by {type(self._service).__name__}"


def _as_node(stream: Any) -> DataPipe:
    """An object that can be iterated as a node, so that the nodes among its attributes are its inputs."""
    kind = type(stream)
    node: Any = object.__new__(type(kind.__name__, (kind, TorchIterDataPipe), {"__module__": kind.__module__}))
    node.__dict__.update(vars(stream))
    return node  # type: ignore[no-any-return]
