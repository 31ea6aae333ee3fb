"""A supervisor whose number of processes may change while the stream goes on, and that chooses it if it is asked to.

Runs in the main process, in the consumer's thread. The shards stay, and so does the stream (law L1): the processes
begin anew from the cursors, as after a death of which all have to know. What was made since the last snapshots is made
again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from reading_services._supervision.supervisor import Supervisor
from reading_services._supervision.tuning import Choice, Interval, Tuner
from reading_services._transport.messages import Stop
from torchpipe.execution.shard import Chunk
from torchpipe.stats import Budget
from torchpipe.stats.sheet import AWAITING_CREDIT, MAKING, SENDING, Times

__all__ = ["TunedSupervisor"]

_log = logging.getLogger("torchpipe")

_INTERVAL_S = 1.0
_LEAST_CHUNKS = 8  # in an interval


class TunedSupervisor(Supervisor):
    """With ``budget``, it begins with as many processes as there are cores, and chooses from then on.

    Raises: as :class:`Supervisor`.
    """

    def __init__(self, *, num_workers: int, budget: Budget | None = None, **more: Any) -> None:
        self.most_workers = num_workers
        self._tuner = None
        if budget is not None:
            budget = budget.filled()
            self._tuner = Tuner(budget, num_workers)
            num_workers = max(1, min(num_workers, int(budget.cores or 1)))
        super().__init__(num_workers=num_workers, **more)
        self._since = _Since()

    def resize(self, workers: int, window: int | None = None) -> None:
        """Let so many processes host the shards, at most ``most_workers``; ``window``: how far they may run ahead.

        In the consumer's thread, between two pulls. Those that are too many end once they have made what they are at.
        """
        if not 1 <= workers <= self.most_workers:
            raise ValueError(f"there can be 1 to {self.most_workers} workers, not {workers}")
        with self._calls, self._lock:
            if window is not None:
                self._limits = replace(self._limits, window=window)
                self._begin = replace(self._begin, limits=self._limits)
                for ledger in self._ledgers.values():
                    ledger.window = window
            for worker in [worker for worker in self._pool if worker.worker >= workers]:
                worker.failed = True  # so that nobody mourns it
                self._plans.pop(worker.worker, None)
                self._pool.send(worker.worker, Stop())
            for worker in [worker for worker in self._pool if self.num_workers <= worker.worker < workers]:
                worker.kill()  # it was to end anyhow, and its number is wanted
                self._lose(worker, self._examine(worker))
            self.num_workers = workers
            self._numbers = [number for number in self._numbers if number < 0] + list(range(workers))
            if self._epoch is not None:
                self._start_missing()
                self._begin_all()

    def begin_epoch(self, *args: Any, **more: Any) -> None:
        super().begin_epoch(*args, **more)
        self._since = _Since()

    def pull_any(self, lanes: Collection[int], timeout_s: float | None = None) -> tuple[int, Chunk]:
        if self._tuner is None:
            return super().pull_any(lanes, timeout_s)
        since = self._since
        if time.monotonic() - since.begun >= _INTERVAL_S and since.chunks >= _LEAST_CHUNKS:
            self._tune(time.monotonic())  # before anything is taken: if it raises, nothing is lost
            since = self._since
        began = time.monotonic()
        lane, chunk = super().pull_any(lanes, timeout_s)
        since.waited_s += time.monotonic() - began
        since.items += len(chunk.items)
        since.chunks += 1
        return lane, chunk

    def _tune(self, now: float) -> None:
        assert self._tuner is not None
        seen = self._interval(now)
        chosen = Choice(self.num_workers, self._limits.window)
        choice = self._tuner.choose(chosen, seen) if seen is not None else chosen
        self._since = _Since()
        if seen is None and not self._all_ready():
            return  # they are starting, which may take seconds
        if (choice.workers, choice.window) == (chosen.workers, chosen.window):
            self._since.sheets = self._sheets()
            return
        text = f"{choice.workers} of at most {self.most_workers} workers, {choice.window} messages ahead: {choice.why}"
        _log.info("autotune: %s", text)
        self._accounts.events.tell("tuned", "main", text)
        self.resize(choice.workers, choice.window)  # the interval in which they begin says nothing

    def _all_ready(self) -> bool:
        return all(self._pool.is_ready(number) for number in range(self.num_workers))

    def _sheets(self) -> dict[int, Times]:
        return {worker.pid: worker.page.times.read() for worker in self._pool if 0 <= worker.worker < self.num_workers}

    def _interval(self, now: float) -> Interval | None:
        """What it was like since it began; None if processes have come or gone meanwhile, or it was not marked."""
        before, sheets, seconds = self._since.sheets, self._sheets(), now - self._since.begun
        if before.keys() != sheets.keys():
            return None
        spent = []
        for pid, times in sheets.items():
            times.add(before[pid], -1)
            spent.append(times)
        count = max(1, len(spent))

        def part(*doing: int) -> float:
            return sum(times.seconds(item) for times in spent for item in doing) / count / seconds

        return Interval(
            seconds=seconds,
            items=self._since.items,
            waited=min(1.0, self._since.waited_s / seconds),
            busy=min(1.0, part(MAKING, SENDING)),
            held_back=min(1.0, part(AWAITING_CREDIT)),
            worker_cores=sum(times.cpu_ns for times in spent) / 1e9 / count / seconds,
            own_cores=(time.process_time() - self._since.cpu_s) / seconds,
            memory_bytes=max((times.memory_bytes for times in spent), default=0),
        )


class _Since:
    """What was seen since an interval began. Without ``sheets``, it is not one to go by."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.cpu_s = time.process_time()
        self.sheets: dict[int, Times] = {}
        self.waited_s = 0.0
        self.items = self.chunks = 0
