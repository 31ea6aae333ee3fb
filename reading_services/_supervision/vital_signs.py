"""Since when a process has shown no sign of life. Runs in the main process, in the threads that look after it.

A process that runs beats. One that starts imports torch, and need not: it is only known to be lost where it is stopped,
where that takes far too long, or, if it was forked, where it sleeps at a place before our own first line. There it
waits for a lock that another thread held when it was forked, which nobody will release: C libraries' locks, those of
hooks (``os.register_at_fork``), and CPython's own up to 3.11 (python/cpython#112275), where a thread of a library that
takes the interpreter lock, such as gloo's, is enough.
"""

from __future__ import annotations

import time

from reading_services._transport.status_page import Field, StatusPage

__all__ = ["VitalSigns"]

_STARTUP_S = 120.0  # of one that is not stopped: before the first sign of life, importing torch included
_ASLEEP_S = 5.0  # before it is ready, without using any of the processor's time
_LOOK_S = 0.25


class VitalSigns:
    """Of one process, whose beats are on ``page``. Times are monotonic, in seconds."""

    def __init__(self, page: StatusPage) -> None:
        self.ready = False
        self.seen_at = time.monotonic()
        self._page = page
        self._beat = -1
        self._silent_s, self._asked_at = 0.0, self.seen_at
        self._pid = 0
        self._forked = False
        self._used, self._asleep_since, self._looked_at = b"", 0.0, 0.0

    def started(self, pid: int, *, forked: bool) -> None:
        self._pid, self._forked = pid, forked
        self._see()

    def say_ready(self) -> None:
        """The process has started. Only from now on is it expected to beat."""
        self.ready = True
        self._see()

    def _see(self) -> None:
        self.seen_at, self._silent_s = time.monotonic(), 0.0

    def look_stuck_in_fork(self) -> bool:
        """Was it forked while another thread held a lock? As far as looks up to now tell (Linux); this may be one."""
        now = time.monotonic()
        if self._forked and not self.ready and now - self._looked_at > _LOOK_S:
            self._looked_at = now
            state, used = _told_of(self._pid)
            if state != b"S" or used != self._used:
                self._used, self._asleep_since = used, now
        return self._forked and not self.ready and self._looked_at - self._asleep_since > _ASLEEP_S

    def missing_for(self, timeout_s: float) -> bool:
        """Has it shown no sign of life for ``timeout_s`` in which this side has been looking, four times or more?

        A time in which this side did not look either does not count: both may have been stopped (Ctrl-Z, a container or
        a machine that is paused), or wait for a processor.
        """
        beat, now = self._page[Field.BEAT], time.monotonic()
        self._silent_s += min(now - self._asked_at, timeout_s / 3)
        self._asked_at = now
        if beat != self._beat:
            self._beat = beat
            self._see()
        if self.ready or self._silent_s <= timeout_s:
            return self._silent_s > timeout_s
        return self._silent_s > _STARTUP_S or _told_of(self._pid)[0] == b"T"


def _told_of(pid: int) -> tuple[bytes, bytes]:
    """(state, time in user and system mode), as far as the system tells (Linux)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return fields[0], b" ".join(fields[11:13])
    except (OSError, IndexError):
        return b"", b""
