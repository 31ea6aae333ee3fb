"""What a test leaves behind is seen, each kind of it."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests import leaks


@contextmanager
def _process() -> Iterator[str]:
    with subprocess.Popen(["sleep", "60"]) as child:
        yield f"process {child.pid}"
        child.kill()


@contextmanager
def _child_of_the_fork_server() -> Iterator[str]:
    context = multiprocessing.get_context("forkserver")
    event = context.Event()
    child = context.Process(target=event.wait)
    child.start()
    yield f"process {child.pid}"
    event.set()
    child.join()
    child.close()


@contextmanager
def _thread() -> Iterator[str]:
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="left over", daemon=True)
    thread.start()
    yield "thread 'left over' (daemon)"
    go.set()
    thread.join()


@contextmanager
def _segment() -> Iterator[str]:
    path = leaks.SHARED_MEMORY / f"torchpipe-test-{os.getpid()}"
    path.write_bytes(b"x")
    yield f"shared memory {path}"
    path.unlink()


@contextmanager
def _file() -> Iterator[str]:
    with Path(__file__).open():
        yield f"file descriptor {__file__}"


@pytest.mark.parametrize("leave", [_process, _child_of_the_fork_server, _thread, _segment, _file])
def test_each_kind_is_seen(leave: Callable[[], AbstractContextManager[str]]) -> None:
    before = leaks.Footprint.take()
    with leave() as expected:
        assert any(line.startswith(expected) for line in leaks.wait_nothing_left(before, grace_s=0.1))
    assert leaks.wait_nothing_left(before) == []
