"""The progress of an actor, and the parts of its time: noted by its working thread, read by the other one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from reading_services.actors.replies import Status
from reading_services.engine.messages import Report
from reading_services.engine.workers import Figures
from torchpipe.node.host import Trace
from torchpipe.stats.sheet import AWAITING_INPUT, MAKING, NodeSheet, TimeSheet
from torchpipe.stats.tracing import Tracing

__all__ = ["ActorProgress"]


class ActorProgress:
    """A hosting ``ProgressNote``, for ``nodes`` nodes."""

    def __init__(self, nodes: int) -> None:
        self.times = TimeSheet([0] * TimeSheet.SIZE)
        self._sheet = NodeSheet([0] * (nodes * NodeSheet.STRIDE))
        self._reports: deque[Report] = deque()
        self._at = -1  # the item that is being made, while each is announced
        self._to_announce = 0  # how many more are to be announced
        self._announces = False
        self._seen = threading.Event()

    def announce_items(self, count: int) -> None:
        """Begin the next so many items, one by one, only once the driver has seen which it is; 0: do not wait."""
        self._to_announce, self._announces = count, count > 0
        self._seen.set()

    def skipping_to(self, lane: int, index: int) -> None:
        """Nobody could read it after a death: the driver goes by what it has asked for."""

    def making(self, lane: int, index: int, count: int) -> int:
        """Announce the item that is about to be made, if it is wanted, and wait until the driver has seen it."""
        if self._to_announce > 0:
            self._to_announce -= 1
            self._seen.clear()
            self._at = index
            if self._announces:  # else it was called off before
                self._seen.wait()
        return count

    def remade(self) -> None:
        """The actor counts no items made again: the driver goes by its requests."""

    def idle(self) -> None:
        """Nothing is being made."""
        self._at = -1

    def trace(self, *, note_steps: bool) -> Trace | None:
        return Tracing(self._sheet) if self.times.wanted else None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Meanwhile, what is being made waits for something from elsewhere."""
        self.times.turn_to(AWAITING_INPUT)
        try:
            yield
        finally:
            self.times.turn_to(MAKING)

    def report(self, reports: list[Report]) -> None:
        """For whoever asks next."""
        self._reports.extend(reports)

    def figures(self) -> list[Figures]:
        return self._sheet.read() if self.times.wanted else []

    def status(self, seen: int) -> Status:
        """``seen``: the item that the driver knows of."""
        at = self._at
        if at >= 0 and seen == at:
            self._seen.set()
        reports = [self._reports.popleft() for _ in range(len(self._reports))]
        return Status(times=self.times.read(), nodes=self.figures(), reports=reports, at=at)
