"""Measures the time that a test takes, from outside its process: see :mod:`tests.limits`.

Runs as a process of its own, ``watchdog.py PID SIGNAL GRACE_S STACKS``, nobody's child. Each line on its stdin is a
number of seconds: show what has come into the file STACKS (a descriptor) then and signal the process, again after the
grace, and kill it with its descendants after as long again. 0 takes that back. It ends with the process that it
watches. Imports nothing of the project.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

STDIN = 0


def watch(pid: int, number: int, grace_s: float, stacks: int) -> None:
    target = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(STDIN, select.POLLIN)
    poll.register(target, select.POLLIN)
    due, signalled, shown = float("inf"), 0, 0
    while True:
        left_s = max(0.0, due - time.monotonic())
        ready = dict(poll.poll(None if left_s == float("inf") else left_s * 1000))
        if signalled or time.monotonic() >= due:
            shown += show(stacks, shown)
        if target in ready:
            return
        if STDIN in ready:
            lines = os.read(STDIN, 1 << 16).split()
            if not lines:
                return
            seconds, signalled = float(lines[-1]), 0
            due = time.monotonic() + seconds if seconds else float("inf")
        elif time.monotonic() >= due:
            if signalled == 2:
                end(pid)
                return
            try:
                signal.pidfd_send_signal(target, number)
            except ProcessLookupError:
                return
            due, signalled = time.monotonic() + grace_s, signalled + 1


def show(stacks: int, offset: int) -> int:
    """What has come into the file since, in one piece: other processes may write to the same stderr."""
    new = os.pread(stacks, os.fstat(stacks).st_size - offset, offset)
    sys.stderr.buffer.write(new)
    sys.stderr.flush()
    return len(new)


def end(pid: int) -> None:
    import psutil

    process = psutil.Process(pid)
    process.suspend()  # it must not start more of them meanwhile
    descendants = process.children(recursive=True)
    print(f"\nwatchdog: killing process {pid}, which cannot be interrupted, and {len(descendants)} others", flush=True)
    for victim in (process, *descendants):
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            continue


if __name__ == "__main__":
    if os.fork() == 0:
        os.setsid()
        watch(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
