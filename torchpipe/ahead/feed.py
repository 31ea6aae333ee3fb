"""The feed thread: pulls a source ahead of its consumer, moves items on and takes snapshots, into a bounded queue.

Runs in any process that iterates a graph; ``background`` has the consumer's side and says who owns what and how each
wait ends; ``staged`` has the feed with two queues.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from torchpipe.errors import StateError
from torchpipe.node.failure import add_note
from torchpipe.node.holders import Holders
from torchpipe.node.iterator import NodeIterator
from torchpipe.state import SnapshotPolicy, encode

__all__ = [
    "Admitted",
    "Feed",
    "Gate",
    "Mover",
    "Snapshots",
    "Source",
    "in_feed_thread",
    "mark_feed_thread",
    "move",
    "nth_item",
]

_log = logging.getLogger("torchpipe")

_local = threading.local()


def in_feed_thread() -> bool:
    """Does the caller run in the thread of a feed?"""
    return getattr(_local, "feed", False)


def mark_feed_thread() -> None:
    """The calling thread is a feed's."""
    _local.feed = True


class Mover(Protocol):
    """What happens to an item on its way from the source to the consumer."""

    def prepare(self) -> None:
        """Make ready for a pass. Called in the consumer's thread, before the first :meth:`transfer`."""

    def transfer(self, batch: Any, /) -> Any:
        """The item on its way. Called in a feed thread, item by item in order; in several at once if asked for."""

    def receive(self, moved: Any, /) -> Any:
        """The item as the consumer gets it. Called in the consumer's thread with what :meth:`transfer` returned."""

    def close(self) -> None:
        """End the pass, begun or not; no call is under way. Called in either thread."""


@dataclass(slots=True)
class Admitted:
    """What a :class:`Gate` made of an item. ``mark`` is the gate's state from this item on; None: as it was."""

    item: Any
    nbytes: int = 0
    mark: Any = None
    dropped: int = 0  # set by the feed: how many items the gate has kept back since the item before
    number: int = 0  # set by the feed: the source's items before it, since its start or restore


class Gate(Protocol):
    """Looks at each item before it is moved: one thread, in order, so that what it decides is part of the stream."""

    new_shapes: int

    def admit(self, item: Any, /) -> Admitted | None:
        """The item as it is to be moved, or None to leave it out. What it raises is raised at the item's place."""


class Source(Protocol):
    """What runs ahead: an iterator of a node, or whatever else has a stream and a position."""

    def items(self) -> Iterator[Any]:
        """The stream; called once."""

    def state_dict(self) -> dict[str, Any]:
        """The position after the item that came last."""

    def interrupt(self) -> None:
        """Wake whoever waits for an item in another thread; the stream is then over. Thread-safe."""

    def close(self) -> None:
        """Let go of everything it holds. Idempotent."""


class Snapshots:
    """Takes the source's snapshots when they are due; one that cannot be encoded is left out, and said so once."""

    def __init__(self, source: Source, policy: SnapshotPolicy, name: str) -> None:
        self._source = source
        self._holders = Holders(source) if isinstance(source, NodeIterator) else None
        self._policy = policy
        self._name = name
        self._told = False

    def after_item(self) -> bytes | None:
        if not self._policy.due():
            return None
        self._policy.begin()
        try:
            return encode(self._source.state_dict(), locate=self._holders)
        except StateError as error:
            # The older cursor stays true: a restore from it drops more items.
            _log.log(
                logging.DEBUG if self._told else logging.WARNING, "%s keeps an older snapshot: %s", self._name, error
            )
            self._told = True
            return None
        finally:
            self._policy.end()


Queued: TypeAlias = tuple[
    Any, bytes | None, Admitted | None
]  # the item as moved, the snapshot after it, its gate's word


class Feed:
    """The shared half: what the thread runs and all that it holds."""

    def __init__(
        self,
        source: Source,
        depth: int,
        mover: Mover | None,
        snapshots: Snapshots,
        name: str,
        gate: Gate | None = None,
    ) -> None:
        self.name = name
        self.thread: threading.Thread | None = None  # the one that pulls
        self._pid = 0  # of the process that has the thread
        # Reentrant, since the garbage collector may call stop() in any thread, also in one that holds it.
        self.changed = threading.Condition()
        self.ready: deque[Queued] = deque()
        self.error: BaseException | None = None  # raised after the items in ``ready``
        self.close_error: BaseException | None = None
        # Each side first says that it waits, then looks at ``ready`` again; the other first changes ``ready``, then
        # looks whether anyone waits. So no wake-up is lost, and the lock is left alone while both sides keep pace.
        self.consumer_waits = False
        self.feeder_waits = False
        self.ended = False  # nothing more will come into ``ready``
        self.stopping = False
        self.wait_s = 0.0  # the pulling thread waited for room
        self.pull_s = 0.0  # the source worked or waited; counted where there is a mover
        self.transfer_s = 0.0
        self.moved_bytes = 0
        self.dropped = 0
        self._source = source
        self._depth = depth
        self._mover = mover
        self._gate = gate
        self._snapshots = snapshots
        self._pulled = 0
        self._kept_back = 0  # since the last item that was admitted
        self._abandoned = False  # nobody is going to look at ``close_error``
        self._closed = False

    def start(self) -> None:
        self._pid = os.getpid()
        self.thread = self._start_thread(self._run, "")

    def _start_thread(self, target: Callable[[], None], suffix: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"torchpipe {self.name}{suffix}", daemon=True)
        thread.start()
        return thread

    @property
    def forked(self) -> bool:
        """Is this a copy in a forked process? There the thread does not exist, and a lock that it held stays locked."""
        return self._pid != os.getpid() and self.thread is not None

    @property
    def pulling(self) -> bool:
        """May the source be in use?"""
        return self.thread is not None and not self.ended

    @property
    def lost(self) -> bool:
        """Is a thread gone without having said why?"""
        return self.thread is None or not (self.thread.is_alive() or self.ended)

    def _run(self) -> None:
        """The thread's life."""
        mark_feed_thread()
        try:
            if self._mover is None and self._gate is None:
                self._pull_all()
            else:
                self._pull_and_move_all()
        except BaseException as error:
            self.error = error
        finally:
            with self.changed:
                self.ended = True
                stopping = self.stopping
                if stopping:
                    self.error = None
                self.changed.notify_all()
            if stopping:
                self._close_in_thread()

    def _pull_all(self) -> None:
        stream = self._source.items()
        while self._wait_for_room():
            try:
                item = next(stream)
            except StopIteration:
                return
            except BaseException as error:
                self._note_pull(error)
                raise
            self._pulled += 1
            self.ready.append((item, self._snapshots.after_item(), None))
            del item  # the consumer alone decides how long an item lives
            if self.stopping:
                self.ready.clear()
            elif self.consumer_waits:
                self._tell_consumer()

    def _pull_and_move_all(self) -> None:
        for admitted in self._admitted():
            began = time.perf_counter()
            item, admitted.item = admitted.item, None
            if self._mover is not None:
                item = move(self._mover.transfer, item, admitted.number, self.name)
            self.transfer_s += time.perf_counter() - began
            self.moved_bytes += admitted.nbytes
            self.ready.append((item, self._snapshots.after_item(), admitted))
            del item
            if self.stopping:
                self.ready.clear()
            elif self.consumer_waits:
                self._tell_consumer()

    def _admitted(self) -> Iterator[Admitted]:
        """The items that the gate lets pass, each when there is room for it."""
        stream = self._source.items()
        while self._wait_for_room():
            began = time.perf_counter()
            try:
                item = next(stream)
            except StopIteration:
                return
            except BaseException as error:
                self._note_pull(error)
                raise
            self.pull_s += time.perf_counter() - began
            admitted = self.admit(item)
            del item
            if admitted is not None:
                yield admitted

    def admit(self, item: Any) -> Admitted | None:
        """What the gate says to the source's next item."""
        number = self._pulled
        self._pulled += 1
        if self._gate is None:
            return Admitted(item, number=number)
        admitted: Admitted | None = move(self._gate.admit, item, number, self.name)
        if admitted is None:
            self._kept_back += 1
            self.dropped += 1
        else:
            admitted.number = number
            admitted.dropped, self._kept_back = self._kept_back, 0
        return admitted

    def _note_pull(self, error: BaseException) -> None:
        add_note(error, f"torchpipe: raised in the thread of {self.name}, while it pulled {nth_item(self._pulled)}")

    def _tell_consumer(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def _wait_for_room(self) -> bool:
        """Wait until fewer than ``depth`` items are ready: True; False to end."""
        if len(self.ready) >= self._depth and not self.stopping:
            began = time.perf_counter()
            with self.changed:
                self.feeder_waits = True
                while len(self.ready) >= self._depth and not self.stopping:
                    self.changed.wait()
                self.feeder_waits = False
            self.wait_s += time.perf_counter() - began
        return not self.stopping

    def taken(self, entry: Admitted) -> None:
        """The consumer has taken this item out of ``ready``."""

    def depths(self) -> tuple[int, int, int, int]:
        """Batches and bytes that wait on the host, then those on the device or on their way to it."""
        held = [entry[2] for entry in list(self.ready)]
        return 0, 0, len(held), sum(entry.nbytes for entry in held if entry is not None)

    def stop(self) -> None:
        """Ask the threads to end and forget what is ready. Any thread, the collector included; does not wait."""
        if self.forked:
            return
        with self.changed:
            self.stopping = True
            self._forget()
            self.changed.notify_all()

    def _forget(self) -> None:
        self.ready.clear()
        self.error = None  # nobody wants it; its traceback leads to this object and to items, in a cycle

    def abandon(self) -> None:
        """:meth:`stop`; what goes wrong in the thread from now on is logged, since nobody is there to raise it to."""
        self._abandoned = True
        self.stop()

    def interrupt(self) -> None:
        """:meth:`stop`, and wake the thread if it waits for what the source waits for. Any thread."""
        self.stop()
        self._source.interrupt()

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads after :meth:`stop`: have all ended?"""
        deadline = time.monotonic() + timeout_s
        for thread in self.threads():
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self.threads())

    def threads(self) -> list[threading.Thread]:
        return [] if self.thread is None else [self.thread]

    def _close_in_thread(self) -> None:
        try:
            self.close()
        except BaseException as error:
            self.close_error = error
            if self._abandoned:
                _log.warning("%s: closing its input failed", self.name, exc_info=error)

    def close(self) -> None:
        """Close the source, then the mover. Once; only when no pull is under way."""
        with self.changed:
            closed, self._closed = self._closed, True
        if closed:
            return
        try:
            self._source.close()
        finally:
            if self._mover is not None:
                self._mover.close()


def nth_item(index: int) -> str:
    return f"item {index} since its start or restore"


def move(step: Callable[[Any], Any], item: Any, index: int, name: str) -> Any:
    try:
        return step(item)
    except BaseException as error:
        add_note(error, f"torchpipe: raised in {name}, while it moved {nth_item(index)}")
        raise
