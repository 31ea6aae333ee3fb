"""The feed: pulls a source ahead of its consumer, moves items on and takes snapshots, into bounded queues.

Runs in any process that iterates a graph; ``background`` has the consumer's side and says who owns what and how each
wait ends.

    source -> [pulling thread, which moves] -----------------------------------> ready (device) -> consumer
    source -> [pulling thread] -> waiting (host) -> [transfer threads] -> moving -> ready (device) -> consumer
                                  host_depth                              depth, of both after waiting

As ``stage.limits`` are by default, there is no transfer thread, and ``waiting`` and ``moving`` stay empty. Transfer
threads take items in the order of the stream, which ``moving`` keeps, and finish in any: the first one there becomes
ready when it is moved, then the next. A failure waits in its item's place, and what comes after it is forgotten. The
first item is always moving or moved: no wait for another is circular.

``waiting`` and ``moving`` are used with the lock held. ``ready`` is not: each side first says that it waits, then looks
at ``ready`` again; the other first changes ``ready``, then looks whether anyone waits. So no wake-up is lost, and the
lock is left alone while both sides keep pace.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from torchpipe.ahead.stage import ONE_QUEUE, Admitted, Source, Stage
from torchpipe.ahead.waiting import join_all, listed
from torchpipe.errors import StateError, add_note
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.opaque_warnings import OpaqueItemFinder
from torchpipe.state import SnapshotPolicy, encode

__all__ = ["Feed", "Snapshot", "Snapshots", "in_feed_thread", "move"]

_log = logging.getLogger("torchpipe")

_local = threading.local()


def in_feed_thread() -> bool:
    """True if the caller runs in the thread of a feed."""
    return getattr(_local, "feed", False)


Snapshot: TypeAlias = bytes | Callable[[], dict[str, Any]]
"""A state of the source, encoded, or what gives it."""


class Snapshots:
    """Notes the source's state after each item where that costs nothing, else takes snapshots when they are due.

    One that cannot be encoded is left out, and said so once.
    """

    def __init__(self, source: Source, policy: SnapshotPolicy, name: str) -> None:
        self._source = source
        self._marked = source if isinstance(source, NodeIterator) else None
        self.holders = None if self._marked is None else OpaqueItemFinder(self._marked)
        self._policy = policy
        self._name = name
        self._warned = False

    def after_item(self) -> Snapshot | None:
        if self._marked is not None:
            mark = self._marked.state_later()
            if mark is not None:
                return mark
            self._marked = None
        if not self._policy.due():
            return None
        self._policy.begin()
        try:
            return encode(self._source.state_dict(), locate=self.holders)
        except StateError as error:
            # The older cursor stays true: a restore from it drops more items.
            _log.log(
                logging.DEBUG if self._warned else logging.WARNING, "%s keeps an older snapshot: %s", self._name, error
            )
            self._warned = True
            return None
        finally:
            self._policy.end()


# The item as moved, the snapshot after it, and its gate's word; None for the last where nothing is admitted or moved
Queued: TypeAlias = tuple[Any, Snapshot | None, Admitted | None]


@dataclass(eq=False)
class Feed:
    """The part of a stage that the threads run, and all that they and the consumer share."""

    source: Source
    stage: Stage
    snapshots: Snapshots
    name: str

    def __post_init__(self) -> None:
        self.threads: list[threading.Thread] = []  # the first one pulls
        # Reentrant, since the garbage collector may call stop() in any thread, also in one that holds it. Taken by its
        # own name: a Condition takes it in Python code, where Ctrl-C would leave it taken.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.waiting: deque[Admitted] = deque()
        self.moving: deque[Admitted] = deque()
        self.ready: deque[Queued] = deque()
        self.consumer_waits = False
        self.idle = 0  # threads that wait for room or for an item to move
        self.pulling = False  # the source may be in use
        self.over = False  # nothing more is to be pulled
        self.ended = False  # nothing more will come into ``ready``
        self.error: BaseException | None = None  # raised then
        self.stopping = False
        self.close_error: BaseException | None = None
        self.wait_s = 0.0  # the pulling thread waited for room
        self.pull_s = 0.0  # the source worked or waited; counted where there is a mover
        self.transfer_s = 0.0
        self.moved_bytes = 0
        self.dropped = 0
        stage = self.stage
        two_queues = stage.mover is not None and stage.depth and stage.limits != ONE_QUEUE
        self._transfers = stage.limits.threads if two_queues else 0  # threads that move items
        self._free = 0 if self._transfers else stage.depth  # while fewer are ready, there is room without asking more
        self._plain = stage.mover is None and stage.gate is None
        self._pid = 0  # of the process that has the threads
        self._begun = self._gone = 0  # threads that have said that they begin, and that they end
        self._pulled = 0
        self._kept_back = 0  # since the last item that was admitted
        self._abandoned = False  # nobody is going to look at ``close_error``
        self._closed = False

    def start(self) -> None:
        self._pid = os.getpid()
        self.pulling = True
        transfers = [(f" transfer {number}", self._transfer_all) for number in range(self._transfers)]
        for suffix, work in [("", self._pull_all), *transfers]:
            name = f"torchpipe {self.name}{suffix}"
            thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
            self.threads.append(thread)
            thread.start()  # after which a Ctrl-C may come, or in the midst of it

    @property
    def forked(self) -> bool:
        """True in a copy in a forked process. There no thread exists, and a lock that one held stays locked."""
        return self._pid != 0 and self._pid != os.getpid()

    @property
    def lost(self) -> bool:
        """True if a thread is gone without having said why. With the lock held."""
        return not self.ended and sum(thread.is_alive() for thread in self.threads) < len(self.threads) - self._gone

    def _run(self, work: Callable[[], None]) -> None:
        """A thread's life. The last one to end closes the source, if nobody else will."""
        with self.lock:
            begins = not self.stopping  # else nobody may wait for it: a Ctrl-C can come in the midst of its start
            self._begun += begins
        if not begins:
            return
        _local.feed = True
        try:
            work()
        except BaseException as error:
            with self.lock:
                if not self.over:
                    self.error, self.over = error, True
        with self.lock:
            self._gone += 1
            if self.stopping:
                self._forget()
            self._settle()
            close = self.stopping and self._gone == self._begun
        if close:
            try:
                self.close()
            except BaseException as error:
                self.close_error = error
                if self._abandoned:
                    _log.warning("%s: closing its input failed", self.name, exc_info=error)

    def _pull_all(self) -> None:
        stream = self.source.items()
        try:
            while self._wait_for_room() and self.pull(stream):
                pass
        finally:
            self.pulling = False

    def _wait_for_room(self) -> bool:
        """Wait until there is room for another item: True; False to end."""
        if len(self.ready) >= self._free:
            began = time.perf_counter()
            with self.lock:
                self.idle += 1
                while not self.over and not self._has_room():
                    self.changed.wait()
                self.idle -= 1
            self.wait_s += time.perf_counter() - began
        return not self.over

    def _has_room(self) -> bool:
        if not self._transfers:
            return len(self.ready) < self._free
        limits, waiting = self.stage.limits, len(self.waiting)
        if waiting >= max(1, limits.host_depth):
            return False
        if waiting and limits.host_bytes is not None and self.depths()["waiting_bytes"] >= limits.host_bytes:
            return False
        return limits.host_depth > 0 or self._device_takes(waiting, 0)

    def _device_takes(self, more: int, nbytes: int) -> bool:
        """True if the device has room for another item, of ``nbytes``, besides ``more``."""
        on_device, budget = len(self.moving) + len(self.ready), self.stage.limits.device_bytes
        if on_device and budget is not None and self.depths()["ready_bytes"] + max(1, nbytes) > budget:
            return False
        return more + on_device < self.stage.depth

    def pull(self, stream: Iterator[Any]) -> bool:
        """Let the source's next item in, unless the gate keeps it back; False at the end. No local outlives the call:
        the consumer alone decides how long an item lives.
        """
        began = 0.0 if self._plain else time.perf_counter()
        try:
            item = next(stream)
        except StopIteration:
            return False
        except BaseException as error:
            if self._pid:
                where = f"the thread of {self.name}, while it pulled item {self._pulled}"
                add_note(error, f"torchpipe: raised in {where} since its start or restore")
            raise
        number = self._pulled
        self._pulled += 1
        if self._plain:
            queued: Queued = (item, self.snapshots.after_item(), None)
        else:
            self.pull_s += time.perf_counter() - began
            gate = self.stage.gate
            admitted = Admitted(item) if gate is None else move(gate.admit, item, number, self.name)
            del item
            if admitted is None:
                self._kept_back += 1
                self.dropped += 1
                return True
            admitted.number = number
            admitted.dropped, self._kept_back = self._kept_back, 0
            admitted.snapshot = self.snapshots.after_item()
            if self._transfers:
                with self.lock:
                    if not self.over:
                        self.waiting.append(admitted)
                        self.changed.notify_all()
                return True
            queued = (self._moved(admitted), admitted.snapshot, admitted)
        self.ready.append(queued)
        if self.consumer_waits:
            with self.lock:
                self.changed.notify_all()
        return True

    def _moved(self, admitted: Admitted) -> Any:
        began = time.perf_counter()
        item, admitted.item = admitted.item, None
        if self.stage.mover is not None:
            item = move(self.stage.mover.transfer, item, admitted.number, self.name)
        with self.lock:
            self.transfer_s += time.perf_counter() - began
            self.moved_bytes += admitted.nbytes
        return item

    def _transfer_all(self) -> None:
        while (admitted := self._next_to_move()) is not None:
            try:
                admitted.item = self._moved(admitted)
            except BaseException as error:
                admitted.error = error
            with self.lock:
                admitted.moved = True
                self._settle()
            del admitted

    def _next_to_move(self) -> Admitted | None:
        """The next item, once the device has room for it; None to end."""
        with self.lock:
            self.idle += 1
            while not (self._device_takes(0, self.waiting[0].nbytes) if self.waiting else self._pulls_no_more()):
                self.changed.wait()
            self.idle -= 1
            if not self.waiting:
                return None
            self.moving.append(admitted := self.waiting.popleft())
            self.changed.notify_all()  # there is room on the host
            return admitted

    def _pulls_no_more(self) -> bool:
        return self.over or not self.pulling

    def _settle(self) -> None:
        """Make ready what is moved, up to the first that is not; the stream ends after its last, or at a failure."""
        while self.moving and self.moving[0].moved:
            admitted = self.moving.popleft()
            if admitted.error is None:
                item, admitted.item = admitted.item, None
                self.ready.append((item, admitted.snapshot, admitted))
            else:
                self.error, self.over = admitted.error, True
                self.waiting.clear()
                self.moving.clear()
        self.ended = self._pulls_no_more() and not self.waiting and not self.moving
        self.changed.notify_all()

    def depths(self) -> dict[str, int]:
        """Batches and bytes that wait on the host, and those on the device or on their way to it: ``ready``."""
        with self.lock:
            waiting = [admitted.nbytes for admitted in self.waiting]
            on_device = [admitted.nbytes for admitted in self.moving]
            # The consumer takes items without the lock
            on_device += [0 if admitted is None else admitted.nbytes for _, _, admitted in listed(self.ready)]
        names = ("waiting", "waiting_bytes", "ready", "ready_bytes")
        return dict(zip(names, (len(waiting), sum(waiting), len(on_device), sum(on_device))))

    def stop(self, *, abandoned: bool = False) -> None:
        """Ask the threads to end and forget what is ready. Any thread, the collector included; does not wait.

        ``abandoned``: what goes wrong in a thread from now on is logged, since nobody is there to raise it to.
        """
        self._abandoned = self._abandoned or abandoned
        if self.forked:
            return
        with self.lock:
            self.stopping = self.over = True
            self._forget()
            self.changed.notify_all()

    def _forget(self) -> None:
        self.waiting.clear()
        self.moving.clear()
        self.ready.clear()
        self.error = None  # nobody wants it; its traceback leads to this object and to items, in a cycle

    def interrupt(self, *, abandoned: bool = False) -> None:
        """:meth:`stop`, and wake the thread if it waits for what the source waits for. Any thread."""
        self.stop(abandoned=abandoned)
        self.source.interrupt()

    def ask(self) -> None:
        """At exit, let the threads end."""
        if not self.forked:
            self.interrupt(abandoned=True)

    def join(self, deadline: float, what: str = "", then: str = "") -> bool:
        """Wait for the threads after :meth:`stop`, as :func:`join_all`: have all ended?"""
        return self.forked or join_all(self.threads, deadline, what, then)

    def close(self) -> None:
        """Close the source, then the mover. Once; only when no pull is under way."""
        with self.lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        try:
            self.source.close()
        finally:
            if self.stage.mover is not None:
                self.stage.mover.close()


def move(step: Callable[[Any], Any], item: Any, index: int, name: str) -> Any:
    try:
        return step(item)
    except BaseException as error:
        add_note(error, f"torchpipe: raised in {name}, while it moved item {index} since its start or restore")
        raise
