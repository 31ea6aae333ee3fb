"""``PreparingReadingService``: the base of services that prepare what another one executes.

Runs in the main process. Imports ``torchpipe``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torchpipe.iterator import NodeIterator
from torchpipe.nodes import DataPipe
from torchpipe.reading_service import EpochStart, InProcessReadingService, ReadingServiceInterface

__all__ = ["Begin", "PreparingReadingService"]

Begin: TypeAlias = Callable[[EpochStart], NodeIterator[Any]]
"""Begins an epoch in the services that follow."""


class PreparingReadingService(ReadingServiceInterface):
    """Has a say in the graph, the start and the stream of an epoch that another service executes.

    It stands before that service in a :class:`SequentialReadingService`; alone, or as the last one, it executes the
    graph in process. Override what is needed: :meth:`prepare`, ``prepare_iteration``, :meth:`run_iteration`,
    :meth:`release`, :meth:`describe`, and ``rank``, ``world_size`` and ``agreed_length``. All are called in the user's
    thread, and so are pulls from the iterator that ``run_iteration`` returns.
    """

    def __init__(self) -> None:
        self._executing: ReadingServiceInterface = InProcessReadingService()

    def prepare(self, datapipe: DataPipe) -> DataPipe:
        """Check the graph; what is returned is the graph for the services that follow."""
        return datapipe

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

    @property
    def default_num_shards(self) -> int:
        return self._executing.default_num_shards

    @property
    def fixed_num_shards(self) -> int | None:
        return self._executing.fixed_num_shards

    def initialize_iteration(self, start: EpochStart) -> NodeIterator[Any]:
        return self.run_iteration(start, self._executing.initialize_iteration)

    def finalize_iteration(self) -> None:
        self._executing.finalize_iteration()

    def finalize(self) -> None:
        try:
            self._executing.finalize()
        finally:
            self.release()

    def explain(self) -> str:
        return f"{self.describe()}\n{self._executing.explain()}"
