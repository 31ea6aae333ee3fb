"""The measure of what tests leave behind sees each kind of thing, and waits for what is about to go."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from hypothesis import given, strategies

from tests import leaks


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def _process(cleanup: ExitStack) -> str:
    child = subprocess.Popen(["sleep", "60"])
    cleanup.callback(child.wait)
    cleanup.callback(child.kill)
    return f"process {child.pid}"


def _grandchild(cleanup: ExitStack) -> str:
    code = "import subprocess; child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); child.wait()"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    cleanup.callback(child.stdout.close)
    cleanup.callback(child.wait)
    cleanup.callback(os.kill, grandchild, 9)
    return f"process {grandchild}"


def _fork_server_child(cleanup: ExitStack) -> str:
    event = multiprocessing.get_context("forkserver").Event()
    child = multiprocessing.get_context("forkserver").Process(target=event.wait)
    child.start()
    cleanup.callback(child.close)
    cleanup.callback(child.join)
    cleanup.callback(event.set)
    return f"process {child.pid}"


def _thread(cleanup: ExitStack) -> str:
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="left over", daemon=True)
    thread.start()
    cleanup.callback(thread.join)
    cleanup.callback(go.set)
    return "thread 'left over' (daemon)"


def _segment(cleanup: ExitStack) -> str:
    path = leaks.SHARED_MEMORY / f"torchpipe-test-{os.getpid()}"
    path.write_bytes(b"x")
    cleanup.callback(path.unlink)
    return f"shared memory {path}"


def _pipe(cleanup: ExitStack) -> str:
    reader, writer = os.pipe()
    cleanup.callback(os.close, reader)
    cleanup.callback(os.close, writer)
    return "file descriptor pipe:["


def _file(cleanup: ExitStack) -> str:
    cleanup.enter_context(Path(__file__).open())
    cleanup.enter_context(Path(__file__).open())
    return f"file descriptor {__file__} (2 times)"


@pytest.mark.parametrize("leave", [_process, _grandchild, _fork_server_child, _thread, _segment, _pipe, _file])
def test_each_kind_is_seen(leave: Callable[[ExitStack], str], cleanup: ExitStack) -> None:
    before = leaks.Footprint.take()
    expected = leave(cleanup)
    assert any(line.startswith(expected) for line in leaks.wait_nothing_left(before, grace_s=0.1))
    cleanup.close()
    assert leaks.wait_nothing_left(before) == []


def test_the_helpers_of_multiprocessing_do_not_count() -> None:
    before = leaks.Footprint.take()
    child = multiprocessing.get_context("forkserver").Process(target=int)
    child.start()
    child.join()
    child.close()
    assert leaks.wait_nothing_left(before) == []


def test_what_ends_in_time_does_not_count() -> None:
    before = leaks.Footprint.take()
    end = threading.Event()
    threading.Thread(target=end.wait).start()
    assert leaks.left_since(before)
    end.set()
    assert leaks.wait_nothing_left(before) == []


def test_a_segment_that_another_test_run_maps_does_not_count(cleanup: ExitStack) -> None:
    before = leaks.Footprint.take()
    expected = _segment(cleanup)
    name = Path(expected.split()[-1]).name
    code = (
        "import mmap, os, sys\n"
        "if os.fork():\n    os._exit(0)\n"  # an orphan: no child of this process
        "os.setsid()\n"
        f"held = mmap.mmap(os.open('/dev/shm/{name}', os.O_RDWR), 1)\n"
        "print(os.getpid(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None
    assert other.stdout is not None
    cleanup.callback(other.stdout.close)
    other.stdout.readline()
    other.wait()
    assert not any(line.startswith("shared memory") for line in leaks.left_since(before))
    other.stdin.close()
    assert other.stdout.read() == ""  # the orphan has gone
    assert expected in leaks.left_since(before)


def test_processes_left_by_a_test_are_killed() -> None:
    before = leaks.Footprint.take()
    child = subprocess.Popen(["sleep", "60"])
    leaks.kill_left(before)
    assert not psutil.pid_exists(child.pid)
    child.wait()


@given(strategies.none())
def test_collections_do_not_call_hypothesis(nothing: None) -> None:
    """A Ctrl-C that strikes in such a call is swallowed: Python tells no one what is raised there."""
    assert [call for call in gc.callbacks if call.__module__.startswith("hypothesis")] == []
