"""The workers that are open, by number, and the successors of those that will end soon.

Used in the main process, under the supervisor's lock. Owns what the pool has opened: nobody else opens or drops one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from reading_services.engine.worker_stats import WorkerStats
from reading_services.engine.workers import Event, Worker, WorkerPool

__all__ = ["OpenWorkers"]

_log = logging.getLogger("torchpipe")


class OpenWorkers:
    """The dispatcher is one of them. What each has done is added to ``stats`` when it is dropped."""

    def __init__(self, pool: WorkerPool, stats: WorkerStats) -> None:
        self.late: set[int] = set()  # have not started in time, as was said since it was last decided about
        self.failed: set[int] = set()  # have said why they cannot go on, and end by themselves
        self._pool, self._stats = pool, stats
        self._open: dict[int, Worker] = {}
        self._successors: dict[int, Worker] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._open

    def __getitem__(self, number: int) -> Worker:
        return self._open[number]

    def __iter__(self) -> Iterator[Worker]:
        """In the order of their numbers. Any thread: another one may replace some meanwhile."""
        return iter(sorted(self._open.values(), key=lambda worker: worker.number))

    def has(self, worker: Worker) -> bool:
        """True for one that is open, and not for one that was dropped, or is a successor."""
        return self._open.get(worker.number) is worker

    def is_ready(self, number: int) -> bool:
        """True if the worker is open and can begin."""
        return number in self._open and self._open[number].ready

    def pending(self, worker: Worker) -> list[Event]:
        """What is known of it already, without a wait."""
        return self._pool.pending(worker)

    def late_error(self, worker: Worker) -> Exception:
        """What one that is late waits for."""
        return self._pool.late_error(worker)

    def open(self, number: int) -> None:
        """Open a worker, or let its successor stand for it. Raises: OSError."""
        stands = number in self._successors
        self._open[number] = self._successors.pop(number) if stands else self._pool.open(number)

    def open_more(self, first: int, end: int) -> dict[int, Worker]:
        """Workers ``first`` to ``end - 1``, all of them or none; :meth:`add` lets them count. Raises: OSError."""
        opened: dict[int, Worker] = {}
        try:
            for number in range(first, end):
                opened[number] = self._pool.open(number)
        except BaseException:
            for worker in opened.values():
                self._pool.drop(worker)
            raise
        return opened

    def add(self, opened: Mapping[int, Worker]) -> None:
        """Those of :meth:`open_more` count from now on."""
        self._open.update(opened)

    def drop(self, number: int) -> None:
        """Let go of a worker, which has ended or is to end."""
        worker = self._open.pop(number)
        self._stats.ended(worker)
        self.failed.discard(number)
        self._pool.drop(worker)

    def numbers_from(self, first: int) -> list[int]:
        """The numbers of those that are open, from ``first`` on."""
        return [number for number in self._open if number >= first]

    # --- successors

    def open_successor(self, worker: Worker) -> None:
        """The worker will end soon: open another one beside it."""
        if worker.number not in self._successors:
            _log.warning("%s is about to be shut down: starting its replacement", worker.name)
            self._stats.events.tell(
                "restart", worker.name, f"{worker.name} is about to be shut down: its replacement is being started"
            )
            self._successors[worker.number] = self._pool.open(worker.number)

    def drop_successor(self, worker: Worker) -> None:
        """One that ends before it has taken over is opened again when its predecessor has ended."""
        if self._successors.get(worker.number) is worker:
            self._pool.drop(self._successors.pop(worker.number))

    def drop_successors_from(self, first: int) -> None:
        """Those of workers from ``first`` on are not needed any more."""
        for number in [number for number in self._successors if number >= first]:
            self._pool.drop(self._successors.pop(number))

    def ready_successors(self) -> list[int]:
        """The numbers of the workers, still open, whose successors can begin."""
        return [number for number, worker in self._successors.items() if worker.ready and number in self._open]

    def swap_in_successor(self, number: int) -> None:
        """Let go of a worker, whose successor stands for it from now on."""
        self.drop(number)
        self._open[number] = self._successors.pop(number)
