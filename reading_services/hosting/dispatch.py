"""The dispatched part of a graph inside a worker: run once, its items handed to the shards that ask for them.

A shard asks for its next items; what it has not asked for stays here, so that nobody blocks on a slow one.

Dispatched items for the shards of a worker: asked for ahead, from wherever the dispatched part runs.

The entries that the engine has dealt to a worker, whose items are not made yet. Nothing waits here: a lane without
an entry is not asked for an item.
"""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from reading_services.engine.messages import Backlog, Deal, Report, StartDispatch
from reading_services.hosting.shards import Images, ProgressNote, Reports, Supply, unsendable
from torchpipe.errors import raise_error_of
from torchpipe.execution.dispatch import DispatchSource, DispatchStart, Entry
from torchpipe.node.failures import add_note, load_error
from torchpipe.node.traits import DataPipe
from torchpipe.state import SnapshotPolicy

__all__ = ["DispatchHost", "EntrySupply", "Portion", "PrefetchingSupply", "ShardQueue"]

_CHUNK_ITEMS = 32
_CHUNK_S = 0.002
_FIRST_REPORT_ITEMS = 256  # fewer may wait for a shard without anybody being told


@dataclass(slots=True)
class Portion:
    """A shard's next items and marks in their order; ``over``: nothing after them, because of ``error`` if any."""

    entries: list[Entry]
    over: bool
    error: BaseException | None


class DispatchHost:
    """Runs ``graph``. ``where``, for notes on errors."""

    def __init__(
        self, graph: DataPipe, policy: Callable[[], SnapshotPolicy], progress: ProgressNote, where: str
    ) -> None:
        self._open = partial(DispatchSource.open, graph, policy=policy, passing=(SystemExit,))
        self._progress, self._where = progress, where
        self._source: DispatchSource | None = None
        self.epoch: StartDispatch | None = None
        self._report_at = _FIRST_REPORT_ITEMS
        self._reports = Reports()
        self._images = Images()

    def take_reports(self) -> list[Report]:
        """The reports for the user, each once."""
        return self._reports.take()

    def begin(self, start: StartDispatch) -> None:
        """End the epoch before, and bring the source to its mark."""
        self.end()
        self.epoch = start
        self._progress.skipping_to(0, start.mark.count)
        at = DispatchStart(mark=start.mark, needed=dict(start.needed))
        with self._reports.of_warnings():
            try:
                self._source = self._open(
                    start.spec(0),
                    at,
                    trace=self._progress.trace(note_steps=start.isolate_items),
                    on_left_out=partial(self._reports.left_out, None),
                    on_again=self._progress.remade,
                )
            except Exception as error:
                add_note(error, "torchpipe: while the dispatcher was starting")
                self._source = DispatchSource.failed(error, at)
        self._progress.idle()
        if start.fail_at is not None:
            position, data = start.fail_at
            self._source.fail_at = (position, load_error(data))

    def has(self, shard: int) -> bool:
        """True if there is an item for the shard, or nothing more to come."""
        source = self._source
        return source is not None and (source.over or any(isinstance(entry, tuple) for entry in source.waiting(shard)))

    def waiting(self, shard: int) -> deque[Entry]:
        """The entries of a shard that have not been taken."""
        return deque() if self._source is None else self._source.waiting(shard)

    @property
    def over(self) -> bool:
        """True once everything is made."""
        return self._source is not None and self._source.over

    def produce(self) -> int:
        """Make a few more items and deal them to the shards: how many."""
        source, epoch = self._source, self.epoch
        assert source is not None
        assert epoch is not None
        singly = epoch.isolate_items or source.position < epoch.isolate_before
        chunk = source.advance(1 if singly else _CHUNK_ITEMS, _CHUNK_S, partial(self._progress.making, 0), self._images)
        self._progress.idle()
        if chunk.error is not None and (source.fail_at is None or chunk.error is not source.fail_at[1]):
            add_note(chunk.error, self._where)
        self._reports.replay(chunk.notice)
        if source.longest >= self._report_at:
            self._reports.add(Backlog(items=source.longest))
            self._report_at = 2 * source.longest
        return len(chunk.items)

    def take(self, shard: int, items: int) -> Portion:
        """The next entries of a shard: up to so many items and the marks around them."""
        source = self._source
        assert source is not None
        entries = source.take_ready(shard, items)
        over = source.over and not source.waiting(shard)
        return Portion(entries, over, source.error if over else None)

    def keep_sendable(self, portion: Portion, shard: int, error: Exception) -> None:
        """Cut the portion before the first item that cannot be sent: its error stands in its place.

        The rest goes back to those that wait: whoever begins anew comes upon the same error.
        """
        assert self._source is not None
        entries = portion.entries
        items = [entry[0] if isinstance(entry, tuple) else entry for entry in entries]
        index, failure = unsendable(items, "from the dispatcher to a worker", error)
        self._source.waiting(shard).extendleft(reversed(entries[index:]))
        del entries[index:]
        add_note(failure, self._where)
        portion.over, portion.error = True, failure

    def end(self) -> None:
        """Close the source. Idempotent."""
        source, self._source = self._source, None
        self.epoch = None
        self._reports.take()
        if source is not None:
            source.close()


_PREFETCH_BYTES = 1 << 20  # of small items, more are asked for at a time than the window says: up to so many bytes


class ShardQueue:
    """The dispatched items of a shard."""

    def __init__(self, window: int) -> None:
        self.ready: deque[Entry] = deque()
        self.items = 0  # of them
        self.window = window  # that it wants to have
        self.request: Any = None  # that is on its way
        self.over = False
        self.error: BaseException | None = None


class PrefetchingSupply(Supply):
    """For each of ``shards``, ``window`` items are asked for ahead; if they are small and quickly used, more."""

    def __init__(self, shards: Iterable[int], window: int) -> None:
        self._item_bytes = _PREFETCH_BYTES
        self._shards = {shard: ShardQueue(window) for shard in shards}

    @abstractmethod
    def _send(self, shard: int, items: int) -> Any:
        """Ask for so many items of a shard: the request, which is not None."""

    @abstractmethod
    def _wait(self, queue: ShardQueue) -> None:
        """Wait for something to happen. Raises: whatever says that the items are not wanted any more."""

    def take(self, shard: int) -> Entry | None:
        self.check()
        queue = self._shards[shard]
        if not queue.items and not queue.over and 2 * queue.window * self._item_bytes <= _PREFETCH_BYTES:
            queue.window *= 2  # the shard has to wait, and its items are small
        while not queue.ready:
            if queue.error is not None:
                raise_error_of(queue)
            if queue.over:
                return None
            self._ask(shard)
            self._wait(queue)
        entry = queue.ready.popleft()
        if isinstance(entry, tuple):
            queue.items -= 1
            if 2 * queue.items <= queue.window:
                self._ask(shard)
        return entry

    def _ask_for_all(self) -> None:
        for shard in self._shards:
            self._ask(shard)

    def _ask(self, shard: int) -> None:
        queue = self._shards[shard]
        if queue.request is None and not queue.over:
            queue.request = self._send(shard, max(1, queue.window - queue.items))

    def _arrived(
        self, queue: ShardQueue, entries: Sequence[Entry], nbytes: int, *, over: bool, error: BaseException | None
    ) -> None:
        """The requested entries have come; ``over``: nothing comes after them, because of ``error`` if there is one."""
        queue.request = None
        queue.ready.extend(entries)
        queue.items += sum(isinstance(entry, tuple) for entry in entries)
        queue.over, queue.error = over, error
        self._item_bytes = nbytes // max(1, len(entries)) + 1


class EntrySupply(Supply):
    """The entries of a worker's lanes, in one generation. A lane is a shard: such a graph has one branch."""

    def __init__(self) -> None:
        self._entries: dict[int, deque[bytes]] = {}
        self._over: set[int] = set()

    def add(self, deal: Deal) -> None:
        self._entries.setdefault(deal.lane, deque()).extend(deal.entries)
        if deal.over:
            self._over.add(deal.lane)

    def keep(self, lanes: Collection[int]) -> None:
        """Forget all lanes but these."""
        self._over.intersection_update(lanes)
        for lane in self._entries.keys() - set(lanes):
            del self._entries[lane]

    def left(self, lane: int) -> int:
        """The number of items that can be asked for, or be found not to exist."""
        return len(self._entries.get(lane, ())) or int(lane in self._over)

    def take(self, shard: int) -> Entry | None:
        entries = self._entries.get(shard)
        return (pickle.loads(entries.popleft()),) if entries else None

    def close(self) -> None:
        self._entries.clear()
