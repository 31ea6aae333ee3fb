"""Workers over many epochs: places, the supervisor that decides for them, and what tunes or balances them.

Runs in the main process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from reading_services.engine.autotune import Autotune, first_workers
from reading_services.engine.balance import Balance
from reading_services.engine.ledger import DealtEntries
from reading_services.engine.options import WorkerLimits
from reading_services.engine.places import Places
from reading_services.engine.supervisor import Supervisor
from torchpipe.execution.provider import ShardPosition
from torchpipe.execution.reading_service import EpochStart
from torchpipe.execution.shard import Chunk
from torchpipe.stats import Budget
from torchpipe.stats.service import ServiceFigures

__all__ = ["Workers"]


class Workers:
    """At most ``most`` workers; with ``budget``, as many of them as turn out to be of use. ``method``: how they start.

    ``balance``: move shards from slow workers to fast ones; without ``budget``, which chooses how many there are.
    ``dispatch_branch``: the branch that dispatched items go to, -1 if there are none. ``restarts``: of earlier ones.
    """

    def __init__(
        self,
        places: Places,
        most: int,
        limits: WorkerLimits,
        *,
        method: str,
        budget: Budget | None = None,
        dispatch_branch: int = -1,
        restarts: int = 0,
        balance: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.places, self.most, self._method = places, most, method
        self.supervisor = Supervisor(
            places,
            first_workers(budget, most),
            limits,
            dispatch_branch=dispatch_branch,
            restarts=restarts,
            clock=clock,
        )
        self._client: Autotune | Balance | None = Balance(self.supervisor, clock) if balance else None
        if budget is not None:
            self._client = Autotune(self.supervisor, budget, most)

    @property
    def usable(self) -> bool:
        """May another epoch begin? Not after a call that was cut short by an interrupt."""
        return self.supervisor.usable

    @property
    def num_workers(self) -> int:
        """How many there are just now."""
        return self.supervisor.num_workers

    @property
    def rebuild_s(self) -> float:
        """How long it took so far to rebuild items from what was sent, in seconds."""
        return self.supervisor.rebuild_s

    def begin_epoch(
        self, start: EpochStart, positions: Sequence[ShardPosition], dealt: Mapping[int, DealtEntries] | None = None
    ) -> None:
        """As the supervisor's."""
        self.supervisor.begin_epoch(start, positions, dealt)
        if self._client is not None:
            self._client.begin_epoch()

    def pull_any(self, lanes: Collection[int], timeout_s: float | None = None) -> tuple[int, Chunk]:
        """As the supervisor's."""
        return (self._client or self.supervisor).pull_any(lanes, timeout_s)

    def resize(self, workers: int, window: int | None = None) -> None:
        """As the supervisor's. Raises: ValueError for more than ``most``."""
        if not 1 <= workers <= self.most:
            raise ValueError(f"there can be 1 to {self.most} workers, not {workers}")
        self.supervisor.resize(workers, window)

    def interrupt(self) -> None:
        """Make a :meth:`pull_any` in another thread return at once. Thread-safe."""
        self.supervisor.interrupt()

    def measure_nodes(self, wanted: bool) -> None:
        """Time the nodes of passes that begin from now on, or do not."""
        self.places.measure_nodes(wanted)

    def figures(self) -> ServiceFigures:
        """What the workers have done in this epoch, or in the last one. Asks nobody. Any thread."""
        return replace(self.supervisor.figures(), method=self._method)

    def end_epoch(self) -> None:
        """Let the workers stop producing; they stay. Idempotent."""
        self.supervisor.end_epoch()

    def close(self) -> None:
        """End the workers. Idempotent."""
        self.supervisor.close()
