"""The dispatched part of a graph inside a worker: run once, its items handed to the shards that ask for them.

A shard asks for its next items; what it has not asked for stays here, so that nobody blocks on a slow one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from reading_services.engine.messages import Backlog, Report, StartDispatch
from reading_services.hosting.shards import Images, ProgressNote, Reports, unsendable
from torchpipe.execution.dispatch import DispatchSource, DispatchStart, Entry
from torchpipe.node.failures import add_note, load_error
from torchpipe.node.host import Host
from torchpipe.node.traits import DataPipe
from torchpipe.state import SnapshotPolicy

__all__ = ["DispatchHost", "Portion"]

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
        self._graph, self._policy, self._progress, self._where = graph, policy, progress, where
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
                host = Host(
                    policy=self._policy,
                    trace=self._progress.trace(note_steps=start.isolate_items),
                    on_left_out=partial(self._reports.left_out, None),
                    on_again=self._progress.remade,
                )
                self._source = DispatchSource.open(self._graph, start.spec(0), at, host=host, passing=(SystemExit,))
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
