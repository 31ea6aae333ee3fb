"""``fetch="samples"``: the samples of a batch are made by whichever workers are idle, and put together by one of them.

Runs in the user's process, between :class:`~torchpipe.data.assigned.AssignedBatches`, which deals batches and takes
them in order, and the workers, processes or threads, which make whatever they are dealt. Both stay as they are: this
stands for the workers to the one, and for whoever deals to the others.

::

    a batch is dealt      Part Part Part ...    to the worker that has least to do; one Part alone is the batch
    its last Part comes   Joining               to the one that has sent it, if no other has less to do
    what that makes       the batch             handed out when its turn comes

A part takes some milliseconds for each worker, as far as is known of the samples before it: what is quick stays in one
piece, and travels as batches do without this. Workers are not dealt all that there is, since nobody takes back what
waits behind a slow sample: enough for as long as the loop was away last time, twice over.

A part depends on its samples' indices and on the seeds of these alone. So it does not matter to any batch who makes
what, when, or twice; a worker that dies is dealt again what has not come back. Batches that are dealt and not taken are
as many as without this.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torchpipe.data.assigned import AssignedBatches
from torchpipe.data.fetch import BatchPart, Failure, Joining, Task
from torchpipe.data.workers import Dealing
from torchpipe.errors import WorkerDiedError, add_note
from torchpipe.execution.figures import ServiceFigures
from torchpipe.execution.shard import Chunk

if TYPE_CHECKING:
    from torchpipe.data.loader import DataLoader
    from torchpipe.data.order.sampling import Order

__all__ = ["NO_WINDOW", "SharedBatches", "SharedWorkers"]

NO_WINDOW = 1 << 30  # messages that a worker may run ahead: whoever deals to it decides

_PART_NS = 2_500_000  # what a part should take, for each worker: five times what it costs here, where all of them pass
_AT_HAND_S = 0.01  # what a worker has at hand while the loop waits, and
_AT_LEAST = 2  # tasks that a worker has at hand, the one it is at included
_PARTS_EACH = 4  # of a batch for each worker, as long as nothing is known of its samples
_LOOK_EACH = 64  # of the batches that are dealt whole, so many lie between two that are not, to be timed


@dataclass(eq=False)
class _Batch:
    """A batch on its way. ``given``: so many of its samples were dealt; ``missing``: so many have not come back."""

    lane: int
    key: int
    indices: list[Any]
    part: int = 0  # samples of each of its parts
    given: int = 0
    missing: int = 0
    pieces: dict[int, Any] = field(default_factory=dict)  # by the number of their first sample
    made: list[Any] = field(default_factory=list)  # the batch, once it is
    error: BaseException | None = None  # what ends the epoch in its place

    def __post_init__(self) -> None:
        self.missing = len(self.indices)

    @property
    def done(self) -> bool:
        return bool(self.made) or self.error is not None


class _Pace:
    """The time of a sample, by those that were made in parts, the newest most; and so the size of parts."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._ns = self._samples = 0.0
        self._whole = 0  # batches that were, since one was not

    def note(self, took_ns: int, samples: int) -> None:
        self._ns, self._samples = self._ns * 0.98 + took_ns, self._samples * 0.98 + samples

    def of(self, samples: int) -> float:
        """Seconds; without end as long as it is not known."""
        return samples * self._ns / self._samples / 1e9 if self._samples else math.inf

    def part_of(self, samples: int) -> int:
        """Into parts of how many samples a batch of so many is to be cut."""
        if self._workers == 1 or not samples:
            return max(1, samples)
        alike = -(-samples // (_PARTS_EACH * self._workers))
        if not self._samples:
            return alike
        part = int(_PART_NS * self._workers * self._samples / max(1.0, self._ns))
        if 2 * part < samples:
            return max(1, part)
        self._whole = (self._whole + 1) % _LOOK_EACH
        return samples if self._whole else alike


class SharedWorkers:
    """To ``AssignedBatches``, workers that make batches: ``lanes`` of them, each of whom gives its own in order.

    With a device stage, one thread deals and another one pulls. One for each epoch; ``workers`` may outlive it.
    """

    def __init__(self, workers: Dealing, lanes: int, window: int) -> None:
        self._workers = workers
        self._window = window * lanes
        self._together = 1  # batches that came in the last message; parts are none
        self._begun = 0  # batches of which workers have been dealt anything, and that were not pulled
        self._lock = threading.RLock()  # held while nothing is waited for
        self._batches = [deque[_Batch]() for _ in range(lanes)]  # of each lane, those that were not pulled
        self._undealt = deque[_Batch]()  # those of which samples are
        self._again = deque[tuple[_Batch, Task]]()  # what a worker that is no more has left
        self._tasks = [deque[tuple[_Batch, Task]]() for _ in range(lanes)]  # of each worker, dealt and not back
        self._loads = [0] * lanes  # samples in these
        self._live = list(range(lanes))  # workers
        self._batches_of = [0] * lanes  # of each worker, those that have come from it
        self._pace = _Pace(lanes)
        self._left_at: float | None = None  # when the loop went away with a batch
        self._away_s = 0.0  # for how long it did the last time

    # -- for whoever takes batches

    def deal(self, lane: int, entries: Sequence[Any], *, over: bool = False) -> None:
        """These batches are to be made. What is ``over`` is not told: batches are put together after all parts."""
        with self._lock:
            batches = [_Batch(lane, key, indices) for key, indices in entries]
            self._batches[lane].extend(batches)
            self._undealt = deque(sorted((*self._undealt, *batches), key=lambda batch: batch.key))

    def begin(self) -> None:
        """All lanes have been dealt what there is for them just now."""
        with self._lock:
            self._spread()

    def outstanding(self, lane: int) -> int:
        """Batches that were dealt and not pulled."""
        return len(self._batches[lane])

    def pull_any(
        self, lanes: Collection[int], timeout_s: float | None = None, waited_s: float = 0.0
    ) -> tuple[int, Chunk]:
        """(a lane, its next batches), of whichever of ``lanes`` has one first.

        Raises: RuntimeError after ``timeout_s`` without one, whatever else comes; ``waited_s`` of these are over.
        """
        began, left_at, self._left_at = time.perf_counter(), self._left_at, None
        if left_at is not None:
            self._away_s = began - left_at
        began -= waited_s
        while True:
            with self._lock:
                found = next((lane for lane in lanes if self._batches[lane] and self._batches[lane][0].done), None)
                self._spread()
                if found is not None:
                    self._left_at = time.perf_counter()
                    return found, self._chunk(self._batches[found])
                awaited = [worker for worker in self._live if self._tasks[worker]]
            worker, chunk = self._workers.pull_any(awaited, timeout_s, time.perf_counter() - began)
            with self._lock:
                self._arrive(worker, chunk)

    def _chunk(self, batches: deque[_Batch]) -> Chunk:
        chunk = Chunk(error=batches[0].error)
        while batches and batches[0].made:
            batch = batches.popleft()
            self._begun -= 1
            chunk.items += batch.made
            if batch.part < len(batch.indices):  # the loop comes back for the next one, and deals
                break
        return chunk

    # -- for the workers

    def _spread(self) -> None:
        """Deal what there is to those who have least to do, as far as they should have something at hand."""
        tasks: dict[int, list[Task]] = {}
        while self._live and (self._again or self._undealt):
            batch = self._again[0][0] if self._again else self._undealt[0]
            if batch.error is not None:  # nobody will have it
                (self._again or self._undealt).popleft()
                continue
            lanes = len(self._batches)
            worker = min(self._live, key=lambda worker: (self._loads[worker], (worker - batch.lane) % lanes))
            if not self._wants_more(worker) or not (self._again or batch.given or self._may_begin()):
                break
            task = self._again.popleft()[1] if self._again else self._next_part(batch)
            self._note_task(worker, batch, task)
            tasks.setdefault(worker, []).append(task)
        for worker, entries in tasks.items():
            self._workers.deal(worker, entries)

    def _may_begin(self) -> bool:
        """True if a batch may begin: as many are kept as if each had one worker; small ones, sent together, are one."""
        return self._begun < self._window * self._together

    def _wants_more(self, worker: int) -> bool:
        if len(self._tasks[worker]) < _AT_LEAST:
            return True
        return self._pace.of(self._loads[worker]) < _AT_HAND_S + 2 * self._away_s

    def _next_part(self, batch: _Batch) -> BatchPart:
        first, size = batch.given, len(batch.indices)
        if not first:
            batch.part = self._pace.part_of(size)
            self._begun += 1
        batch.given = min(size, first + batch.part)
        if batch.given == size:
            self._undealt.popleft()
        return BatchPart(batch.key, batch.indices, first, batch.given)

    def _note_task(self, worker: int, batch: _Batch, task: Task) -> None:
        self._tasks[worker].append((batch, task))
        self._loads[worker] += _samples_of(task)

    def _arrive(self, worker: int, chunk: Chunk) -> None:
        tasks = self._tasks[worker]
        whole = 0
        for item in chunk.items:
            batch, task = tasks.popleft()
            self._loads[worker] -= _samples_of(task)
            if batch.error is not None:
                continue
            if isinstance(task, Joining) or task.is_whole:
                batch.made.append(item)
                whole += 1
            else:
                self._put(batch, task, item)
                if not batch.missing:
                    self._join(batch, worker)
        self._together = max(1, whole)
        self._batches_of[worker] += whole
        if chunk.error is not None:
            self._lose(worker, chunk.error)

    def _put(self, batch: _Batch, task: BatchPart, item: Any) -> None:
        batch.pieces[task.first] = item
        batch.missing -= task.stop - task.first
        if not isinstance(item, Failure):
            self._pace.note(item.took_ns, task.stop - task.first)

    def _join(self, batch: _Batch, worker: int) -> None:
        """All of its samples are there: let them be put together, or the first that has failed be the batch."""
        pieces = [piece for _, piece in sorted(batch.pieces.items())]
        batch.pieces.clear()
        failed = next((piece for piece in pieces if isinstance(piece, Failure)), None)
        if failed is not None:
            batch.made.append(failed)
            return
        task = Joining(batch.key, batch.indices, pieces)
        to = min(self._live, key=lambda other: (self._loads[other], other != worker))
        self._note_task(to, batch, task)
        self._workers.deal(to, [task])

    def _lose(self, worker: int, error: BaseException) -> None:
        """It makes nothing any more, for the sake of what it was at. The others make what it has left."""
        self._live.remove(worker)
        left, self._loads[worker] = self._tasks[worker], 0
        if left:
            batch, task = left.popleft()
            was_at_it = not isinstance(error, WorkerDiedError) or error.making
            if was_at_it and isinstance(task, BatchPart) and not task.is_whole:
                add_note(error, f"torchpipe: while it made the samples {task.indices[task.first : task.stop]!r:.200}")
            batch.error = error
        self._again.extend(left)
        left.clear()
        if not self._live:
            for batch in (batch for batches in self._batches for batch in batches if not batch.done):
                batch.error = error

    # -- the workers' own

    @property
    def num_workers(self) -> int:
        return self._workers.num_workers

    @property
    def rebuild_s(self) -> float:
        return self._workers.rebuild_s

    @property
    def processes(self) -> list[Any]:
        return self._workers.processes

    def figures(self) -> ServiceFigures:
        """In batches, though what workers are dealt and send back are tasks. A worker runs ahead without a limit of its
        own: how many batches are on their way is limited for all of them together.
        """
        figures = self._workers.figures()
        processes = tuple(
            replace(row, items=sum(self._batches_of[lane] for lane in row.shards)) for row in figures.processes
        )
        queues = tuple(replace(queue, limit=None) for queue in figures.queues)
        made = {section: tuple(replace(item, produced=0) for item in of) for section, of in figures.made.items()}
        return replace(
            figures, processes=processes, queues=queues, made=made
        )  # what workers produce is no batch: their own steps say how many there were

    def interrupt(self) -> None:
        self._workers.interrupt()

    def end_epoch(self) -> None:
        self._forget()
        self._workers.end_epoch()

    def close(self) -> None:
        self._forget()
        self._workers.close()

    def _forget(self) -> None:
        waiting: list[deque[Any]] = [*self._batches, self._undealt, self._again, *self._tasks]
        for each in waiting:
            each.clear()


def _samples_of(task: Task) -> int:
    """Putting a batch together counts as one."""
    return 1 if isinstance(task, Joining) else task.stop - task.first


class SharedBatches(AssignedBatches):
    """Batches as in the base, over workers that share the making of one."""

    def __init__(self, loader: DataLoader[Any], order: Order, workers: Dealing, position: dict[str, Any]) -> None:
        self._shared = SharedWorkers(workers, loader.num_workers, loader.prefetch_factor or 1)
        super().__init__(loader, order, self._shared, position)

    def _deal(self, batches: int) -> None:
        super()._deal(batches)
        self._shared.begin()
