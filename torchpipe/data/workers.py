"""The interface between a ``DataLoader`` and the runner of its workers: this, and no more.

``torchpipe/data`` decides what workers make, and in which order it is handed out. ``reading_services`` runs them, in
processes or wherever a :class:`WorkerMethod` says; threads of this process are ``torchpipe/data``'s own.

Runs in the user's process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from torchpipe.execution.figures import ServiceFigures
from torchpipe.execution.interface import ReadingServiceInterface
from torchpipe.execution.limits import WorkerLimits
from torchpipe.execution.reading_service import EpochStart
from torchpipe.execution.shard import Chunk, InitFn
from torchpipe.node.traits import DataPipe
from torchpipe.state import Cursor, SnapshotPolicy
from torchpipe.stats import Budget

__all__ = ["AssignedWorkers", "Dealing", "WorkerEngine", "WorkerMethod"]


class WorkerMethod(Protocol):
    """A place where workers run: the ``worker_method``, if it is no word, a ``Workplace`` of the engine's.

    ``reading_services.RayWorkers`` is one. ``method``: how they start, in a word.
    """

    @property
    def method(self) -> str: ...

    def open_pool(self, shards: Any, dispatched: Any = None, *, silent_s: float | None = None) -> Any:
        """A pool of workers, none of which is started yet: what ``reading_services.engine.workers`` has it to be."""


class Dealing(Protocol):
    """Workers that make an item of each entry that they are dealt."""

    def deal(self, lane: int, entries: Sequence[Any], *, over: bool = False) -> None: ...
    def outstanding(self, lane: int) -> int: ...
    def pull_any(
        self, lanes: Collection[int], timeout_s: float | None = None, waited_s: float = 0.0
    ) -> tuple[int, Chunk]: ...
    def interrupt(self) -> None: ...
    def end_epoch(self) -> None: ...
    def close(self) -> None: ...
    def figures(self) -> ServiceFigures: ...
    @property
    def num_workers(self) -> int: ...
    @property
    def rebuild_s(self) -> float: ...
    @property
    def processes(self) -> list[Any]: ...


class AssignedWorkers(Dealing, Protocol):
    """Workers with a graph, the one source of which reads the entries dealt, for one epoch after another."""

    @property
    def usable(self) -> bool:
        """True if another epoch may begin."""

    def measure_nodes(self, wanted: bool) -> None:
        """Time the nodes of passes that begin from now on, or do not."""

    def begin(
        self,
        start: EpochStart,
        cursors: Sequence[Cursor],
        *,
        stateless: bool,
        again: Sequence[Sequence[Any]] | None = None,
    ) -> None:
        """Begin an epoch. ``stateless``: does an item depend on its entry alone? ``again``: what each cursor skips."""


class WorkerEngine(Protocol):
    """Who runs workers."""

    def takes(self, method: object) -> bool:
        """Can ``method`` say where workers run?"""

    def processes(self, context: Any, *, on_device: bool) -> WorkerMethod:
        """The method of processes that ``context``, or a start method of that name, starts. None: the platform's, or
        ``on_device`` the one that is safe beside an accelerator.
        """

    def dealing(
        self,
        graph: DataPipe,
        num_workers: int,
        method: Any,
        /,
        *,
        init_fn: InitFn | None,
        limits: WorkerLimits,
        policy: Callable[[], SnapshotPolicy],
        steps: int,
        budget: Budget | None,
    ) -> AssignedWorkers:
        """Workers over ``graph``, a node without inputs, of which ``steps`` note for themselves what they take.

        Raises: NotSerializableError, naming the attribute that cannot be sent to them; what ``method`` has to say where
        it cannot start any.
        """

    def streaming(
        self,
        num_workers: int,
        method: Any,
        /,
        *,
        num_shards: int,
        init_fn: InitFn,
        limits: WorkerLimits,
        wait_s: float | None,
        autotune: bool | Budget,
    ) -> ReadingServiceInterface:
        """A service whose workers host ``num_shards`` of a graph, with a limit to each wait for an item.

        It has ``processes``, ``usable`` and ``close()``, as workers that are dealt to have.
        """
