"""A test that meets its time limit fails alone, whatever it hangs in: the plugin that sees to it.

Runs in each process that runs tests; :mod:`tests.watchdog`, a process of its own, measures the time. pytest-timeout
gives the limits (the ini option, ``--timeout`` and the marker); what happens at one is decided here:

1. At the limit a thread in C notes the stacks of all threads in a file, also where Python cannot go on.
2. A second later the watchdog shows them on the real stderr, in one piece though other processes do the same, and sends
   a signal, whose handler fails the test. The run goes on; the teardown has as long.
3. ``timeout_grace`` seconds later (the test swallowed that, say) it sends the signal once more.
4. After as long again (it hangs in C) it kills the process and all that this one has started, which would else keep its
   pipes open. pytest-xdist reports the test as the one that crashed its worker, and starts another worker.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_timeout

__all__ = ["Limits"]

SIGNAL = signal.SIGRTMIN + 7  # tests use the usual ones themselves
AFTER_STACKS_S = 1.0


class Limits:
    """Owner of the watchdog, which is started with the first test and ends with this process."""

    def __init__(self, config: pytest.Config) -> None:
        self._stderr = os.dup(2)  # before anything is captured; in a process of pytest-xdist too
        self._stacks = -1
        self._grace_s = float(config.getini("timeout_grace"))
        self._limit_s: float | None = None  # of the test that runs now
        self._in_phase = self._met = False
        self._pipe: int | None = None

    def _start(self) -> int:
        signal.signal(SIGNAL, self._on_signal)
        read, write = os.pipe()
        with tempfile.TemporaryFile() as file:
            self._stacks = os.dup(file.fileno())
        command = [sys.executable, str(Path(__file__).with_name("watchdog.py"))]
        arguments = [str(number) for number in (os.getpid(), int(SIGNAL), self._grace_s, self._stacks)]
        # It leaves its first process behind at once, so that it is no child of this one: tests count those
        subprocess.run(
            [*command, *arguments],
            stdin=read,
            stdout=self._stderr,
            stderr=self._stderr,
            pass_fds=[self._stacks],
            check=True,
        )
        os.close(read)
        return write

    def _tell(self, limit_s: float) -> None:
        if self._pipe is None:
            self._pipe = self._start()
        faulthandler.dump_traceback_later(limit_s, file=self._stacks)
        os.write(self._pipe, b"%.3f\n" % (limit_s + AFTER_STACKS_S))

    def begin(self, limit_s: float) -> None:
        self._tell(limit_s)
        self._limit_s, self._met = limit_s, False

    def end(self) -> None:
        if self._limit_s is not None and self._pipe is not None:
            self._limit_s = None
            faulthandler.cancel_dump_traceback_later()
            os.write(self._pipe, b"0\n")

    def exiting(self) -> None:
        """From now on this process has to end: threads that a test has left would make it wait for ever."""
        if self._pipe is not None:
            self._tell(self._grace_s)

    def phase(self) -> Iterator[Any]:
        """Around a test's setup, its call and its teardown: a failure that is raised elsewhere would end the run."""
        self._renew()  # pytest has taken the showing of stacks back when it reported the failure
        self._in_phase = True
        try:
            return (yield)
        finally:
            self._in_phase = False
            self._renew()

    def _renew(self) -> None:
        """What follows a limit that was met has as long again: the report, and the teardown."""
        if self._met and self._limit_s is not None:
            self._tell(self._limit_s)

    def _on_signal(self, number: int, frame: Any) -> None:
        __tracebackhide__ = True
        if self._in_phase and self._limit_s is not None and not pytest_timeout.is_debugging():
            self._met = True
            pytest.fail(f"Timeout (>{self._limit_s:g} s): the stacks of all threads are on stderr")


_LIMITS = pytest.StashKey[Limits]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("timeout_grace", "Seconds from one step against a hanging test to the next", default="30")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LIMITS] = Limits(config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    try:
        return (yield)
    finally:
        item.config.stash[_LIMITS].end()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def _phase(item: pytest.Item) -> Iterator[Any]:
    return (yield from item.config.stash[_LIMITS].phase())


pytest_runtest_setup = pytest_runtest_call = pytest_runtest_teardown = _phase


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    item.config.stash[_LIMITS].begin(settings.timeout)
    return True


def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    """Asked for when a test has failed, too: its teardown may hang as well, so only a debugger ends the limit."""
    if item.config.getoption("usepdb"):
        item.config.stash[_LIMITS].end()
    return True


def pytest_enter_pdb(config: pytest.Config) -> None:
    config.stash[_LIMITS].end()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_LIMITS].exiting()
