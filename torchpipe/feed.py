"""The feed thread: pulls a source ahead of its consumer, moves items on and takes snapshots, into a bounded queue.

Runs in any process that iterates a graph; ``background`` has the consumer's side and says who owns what and how each
wait ends. Imports ``errors``, ``failure``, ``iterator`` and ``state``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from torchpipe.errors import StateError
from torchpipe.failure import add_note
from torchpipe.iterator import NodeIterator
from torchpipe.state import SnapshotPolicy, encode

__all__ = ["Feed", "Mover", "Snapshots", "move"]

_log = logging.getLogger("torchpipe")


class Mover(Protocol):
    """What happens to an item on its way from the source to the consumer."""

    def prepare(self) -> None:
        """Make ready for a pass. Called in the consumer's thread, before the first :meth:`transfer`."""

    def transfer(self, batch: Any, /) -> Any:
        """The item on its way. Called in the feed thread, item by item in order."""

    def receive(self, moved: Any, /) -> Any:
        """The item as the consumer gets it. Called in the consumer's thread with what :meth:`transfer` returned."""

    def close(self) -> None:
        """End the pass, begun or not; no call is under way. Called in either thread."""


class Snapshots:
    """Takes the source's snapshots when they are due; one that cannot be encoded is left out, and said so once."""

    def __init__(self, source: NodeIterator[Any], policy: SnapshotPolicy, name: str) -> None:
        self._source = source
        self._policy = policy
        self._name = name
        self._told = False

    def after_item(self) -> bytes | None:
        if not self._policy.due():
            return None
        self._policy.begin()
        try:
            return encode(self._source.state_dict())
        except StateError as error:
            # The older cursor stays true: a restore from it drops more items.
            _log.log(
                logging.DEBUG if self._told else logging.WARNING, "%s keeps an older snapshot: %s", self._name, error
            )
            self._told = True
            return None
        finally:
            self._policy.end()


class Feed:
    """The shared half: what the thread runs and all that it holds."""

    def __init__(
        self, source: NodeIterator[Any], depth: int, mover: Mover | None, snapshots: Snapshots, name: str
    ) -> None:
        self.name = name
        self.thread: threading.Thread | None = None
        self._pid = 0  # of the process that has the thread
        # Reentrant, since the garbage collector may call stop() in any thread, also in one that holds it.
        self.changed = threading.Condition()
        self.ready: deque[tuple[Any, bytes | None]] = deque()
        self.error: BaseException | None = None  # raised after the items in ``ready``
        self.close_error: BaseException | None = None
        # Each side first says that it waits, then looks at ``ready`` again; the other first changes ``ready``, then
        # looks whether anyone waits. So no wake-up is lost, and the lock is left alone while both sides keep pace.
        self.consumer_waits = False
        self.feeder_waits = False
        self.ended = False  # nothing more will come into ``ready``
        self.stopping = False
        self.wait_s = 0.0
        self._source = source
        self._depth = depth
        self._mover = mover
        self._snapshots = snapshots
        self._attended = False  # somebody waits for the thread and will see ``close_error``
        self._closed = False

    def start(self) -> None:
        self._pid = os.getpid()
        self.thread = threading.Thread(target=self._run, name=f"torchpipe {self.name}", daemon=True)
        self.thread.start()

    @property
    def forked(self) -> bool:
        """Is this a copy in a forked process? There the thread does not exist, and a lock that it held stays locked."""
        return self._pid != os.getpid() and self.thread is not None

    def _run(self) -> None:
        """The thread's life."""
        try:
            self._pull_all()
        except BaseException as error:
            self.error = error
        finally:
            with self.changed:
                self.ended = True
                stopping = self.stopping
                self.changed.notify_all()
            if stopping:
                self._close_in_thread()

    def _pull_all(self) -> None:
        stream = self._source.items()
        index = 0
        while self._wait_for_room():
            try:
                item = next(stream)
            except StopIteration:
                return
            except BaseException as error:
                add_note(error, f"torchpipe: raised in the thread of {self.name}, while it pulled {_nth(index)}")
                raise
            if self._mover is not None:
                item = move(self._mover.transfer, item, index, self.name)
            self.ready.append((item, self._snapshots.after_item()))
            del item  # the consumer alone decides how long an item lives
            index += 1
            if self.stopping:
                self.ready.clear()
            elif self.consumer_waits:
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

    def stop(self) -> None:
        """Ask the thread to end and forget what is ready. Any thread, the collector included; does not wait."""
        if self.forked:
            return
        with self.changed:
            self.stopping = True
            self.ready.clear()
            self.changed.notify_all()

    def interrupt(self) -> None:
        """:meth:`stop`, and wake the thread if it waits for what the source waits for. Any thread."""
        self.stop()
        self._source.interrupt()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread after :meth:`stop`: has it ended?"""
        if self.thread is None:
            return True
        self._attended = True
        try:
            self.thread.join(timeout_s)
        finally:
            self._attended = False
        return not self.thread.is_alive()

    def _close_in_thread(self) -> None:
        try:
            self.close()
        except BaseException as error:
            if self._attended:
                self.close_error = error
            else:
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


def _nth(index: int) -> str:
    return f"item {index} since its start or restore"


def move(step: Callable[[Any], Any], item: Any, index: int, name: str) -> Any:
    try:
        return step(item)
    except BaseException as error:
        add_note(error, f"torchpipe: raised in {name}, while it moved {_nth(index)}")
        raise
