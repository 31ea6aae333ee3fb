"""Run ahead of the consumer in threads, with a cursor: the engine of ``prefetch`` and of the device stage.

Runs in any process that iterates a graph.

Who owns what
    feed thread   pulls the source, moves items, takes snapshots; once it runs, nobody else touches the source. With
                  two queues (``feed``), transfer threads move the items
    Feed          what all sides share. The threads hold this and nothing else, so an abandoned pass can be collected
    RunAhead      the consumer's side: owns the threads and the cursor; its ``weakref.finalize`` stops the threads
    the source    is closed once, after its last pull: by the last thread that ends after stop(), else by close()

How each wait ends
    the thread waits for room        an item is taken, or moved on; stop()
    a transfer thread waits          an item waits and the device has room for it; the source or the stream ends; stop()
    the thread is in user code       it returns; close() calls ``source.interrupt()`` for inputs that wait elsewhere
    the consumer waits for an item   an item, the end or an error arrives; stop(); the thread is found dead within 1 s
    close() waits for the thread     it ends; after 5 s a warning names it, and it closes the source when it returns

At most ``depth`` items are between the source and the consumer at any time, the one in the thread's hands included;
with ``Limits.host_depth``, that many more.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torchpipe.ahead.feed import Feed, Snapshot, Snapshots, move
from torchpipe.ahead.stage import Pacer, Source, Stage
from torchpipe.ahead.waiting import end_at_exit, join_deadline
from torchpipe.errors import IteratorInvalidated, WorkerDiedError, raise_error_of
from torchpipe.state import Cursor, SnapshotPolicy, encode
from torchpipe.stats import FeedStats

__all__ = ["FeedStats", "RunAhead"]

_LIVENESS_S = 1.0


class RunAhead:
    """Pulls ``source`` in a thread of its own, moves each item and hands the items out in order, as ``stage`` says.

    An exception of the source, the gate or the mover is raised at its place in the stream, after the items before it.
    ``cursor`` describes what was handed out and nothing else; reading it asks nobody. ``mark`` is the gate's state
    there. Where there is no thread, all is the same, item by item, in the consumer's. The consumer's side is not
    thread-safe, except for :meth:`interrupt`.
    """

    def __init__(self, source: Source, stage: Stage, policy: SnapshotPolicy, name: str = "RunAhead") -> None:
        self._snapshot: Snapshot | None = None
        self._skip = 0
        self._before = 0  # items before ``_snapshot``
        self.mark: Any = None
        self._feed = Feed(source, stage, Snapshots(source, policy, name), name)
        self._stage = stage
        self._closing = False
        self._forgotten: weakref.finalize[[], RunAhead] | None = None
        self._items = 0
        self._wait_s = 0.0

    def items(self) -> Iterator[Any]:
        """The stream; call it once. The thread starts at the first ``next``."""
        stage = self._stage
        if stage.mover is not None:
            stage.mover.prepare()
        stream = self._items_ahead() if stage.depth else self._items_here()
        return stream if stage.pacer is None else _paced(stream, stage.pacer)

    def _items_here(self) -> Iterator[Any]:
        feed = self._feed
        stream, began = feed.source.items(), time.perf_counter()
        while feed.pull(stream):
            if feed.ready:
                held = [self._take()]
                self._wait_s += time.perf_counter() - began
                yield held.pop()  # the consumer alone decides how long an item lives
            elif feed.stopping:
                break  # which forgets what was ready: nothing may follow
            began = time.perf_counter()
        if feed.stopping and not self._closing:
            raise self._interrupted()

    def _items_ahead(self) -> Iterator[Any]:
        feed = self._feed
        self._forgotten = weakref.finalize(self, feed.stop, abandoned=True)
        self._forgotten.atexit = False
        end_at_exit(feed)
        feed.start()
        while self._wait_for_item():
            yield self._take()

    @property
    def cursor(self) -> Cursor:
        """The position after the items handed out."""
        return self._cursor(self._snapshot, self._skip, self._before)

    @cursor.setter
    def cursor(self, value: Cursor) -> None:
        self._snapshot, self._skip, self._before = value.snapshot, value.skip, value.count - value.skip

    def _cursor(self, snapshot: Snapshot | None, skip: int, before: int) -> Cursor:
        if callable(snapshot):
            snapshot = encode(snapshot(), locate=self._feed.snapshots.holders)
        return Cursor(snapshot, skip, before + skip)

    def begin_at(self, mark: Callable[[], dict[str, Any]] | None) -> None:
        """The source stands where ``mark`` says, if it says anything, and nothing was pulled since."""
        if mark is not None:
            self._snapshot, self._skip, self._before = mark, 0, self._before + self._skip

    def state(self) -> Callable[[], dict[str, Any]]:
        """A function that gives the position after the items handed out: the source's own state, or a cursor."""
        snapshot, skip, before = self._snapshot, self._skip, self._before
        if callable(snapshot) and not skip:
            return snapshot
        return lambda: self._cursor(snapshot, skip, before).to_state()

    def stats(self) -> FeedStats:
        feed, gate, pacer = self._feed, self._stage.gate, self._stage.pacer
        return FeedStats(
            items=self._items,
            consumer_wait_s=self._wait_s,
            feeder_wait_s=feed.wait_s,
            pull_s=feed.pull_s,
            transfer_s=feed.transfer_s,
            moved_bytes=feed.moved_bytes,
            new_shapes=0 if gate is None else gate.new_shapes,
            dropped=feed.dropped,
            syncs=0 if pacer is None else pacer.syncs,
            waits=0 if pacer is None else pacer.waits,
            **feed.depths(),
        )

    def _take(self) -> Any:
        feed = self._feed
        try:
            item, snapshot, admitted = feed.ready.popleft()
        except IndexError:
            raise self._interrupted() from None
        if feed.idle or admitted is not None:
            self._check_fork()
            if feed.idle:
                with feed.lock:
                    feed.changed.notify_all()
        passed = 1
        if admitted is not None:
            if self._stage.mover is not None:
                item = move(self._stage.mover.receive, item, admitted.number, feed.name)
            passed += admitted.dropped
            if admitted.mark is not None:
                self.mark = admitted.mark
        if snapshot is None:
            self._skip += passed
        else:
            self._before += self._skip + passed
            self._snapshot, self._skip = snapshot, 0
        self._items += 1
        return item

    def _wait_for_item(self) -> bool:
        """Wait until an item is ready: True; False at the end of the stream. Raises the stream's error at its place."""
        feed = self._feed
        if feed.ready and not feed.stopping:
            return True
        self._check_fork()
        began = time.perf_counter()
        with feed.lock:
            feed.consumer_waits = True
            try:
                while not (feed.ready or feed.ended or feed.stopping):
                    if not feed.changed.wait(_LIVENESS_S) and feed.lost:
                        raise WorkerDiedError(
                            f"the thread of {feed.name} is gone without having said why, after {self._items} items. A "
                            "saved state is still good: restore from it"
                        )
            finally:
                feed.consumer_waits = False
        self._wait_s += time.perf_counter() - began
        if feed.stopping:
            if self._closing:
                return False
            raise self._interrupted()
        if feed.ready:
            return True
        if feed.error is None:
            return False
        raise_error_of(feed)

    def _check_fork(self) -> None:
        """Called before the lock is taken, which a forked copy may have inherited locked."""
        if self._feed.forked:
            raise WorkerDiedError(
                f"{self._feed.name} runs ahead in a thread of the parent process, which process {os.getpid()} does not "
                "have since the fork: make a new iterator in it"
            )

    def _interrupted(self) -> IteratorInvalidated:
        return IteratorInvalidated(f"{self._feed.name} was stopped from another thread while its next item was awaited")

    def interrupt(self) -> None:
        """End the stream with IteratorInvalidated, also in a ``next`` that waits in another thread. Thread-safe."""
        self._feed.interrupt()

    def close(self) -> None:
        """End the thread, then close the source and the mover. Idempotent. Waits at most 5 s.

        A thread that is still inside user code then is named in a warning; it closes the source when it comes back.
        """
        self._closing = True
        feed = self._feed
        if feed.forked:
            return  # a forked copy: the pass belongs to the parent
        feed.stop()
        if feed.pulling:
            feed.source.interrupt()
        deadline = join_deadline()
        if not feed.join(deadline, f"the input of {feed.name}", "close the input when it returns"):
            feed.stop(abandoned=True)
            return
        if self._forgotten is not None:
            self._forgotten.detach()  # in a finalizer, a Ctrl-C would be lost
        feed.close()
        error, feed.close_error = feed.close_error, None
        if error is not None:
            raise error


def _paced(stream: Iterator[Any], pacer: Pacer) -> Iterator[Any]:
    pacer.begin()
    for item in stream:
        held = [item]
        del item  # the consumer alone decides how long an item lives
        yield held.pop()
        pacer.returned()
    pacer.ended()
