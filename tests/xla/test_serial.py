"""SerialExecutor: threads and processes of any start method take turns, and a death sets the lock free."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from torchpipe.xla.serial import SerialExecutor

ROUNDS = 20


def add_one(path: Path) -> int:
    """Not atomic: it loses counts as soon as two run at once."""
    inside = path.with_suffix(".inside")
    inside.touch(exist_ok=False)  # FileExistsError if somebody else is inside
    count = int(path.read_text()) + 1
    path.write_text(str(count))
    inside.unlink()
    return count


def work(lock: str | SerialExecutor, path: Path) -> None:
    """What a process does: with an executor that it got, or with one that it makes."""
    executor = SerialExecutor(lock) if isinstance(lock, str) else lock
    for _ in range(ROUNDS):
        executor.run(lambda: add_one(path))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_take_turns(method: str, tmp_path: Path) -> None:
    """Also those that were given the path with those that were given an executor."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    path = str(tmp_path / "lock")
    context: Any = multiprocessing.get_context(method)
    children = [context.Process(target=work, args=(lock, counter)) for lock in (path, SerialExecutor(path), path)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert counter.read_text() == str(3 * ROUNDS)


def test_threads_take_turns(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    executor = SerialExecutor(tmp_path / "lock")
    threads = [threading.Thread(target=work, args=(executor, counter)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.read_text() == str(4 * ROUNDS)


def test_it_returns_and_raises_what_the_function_does(tmp_path: Path) -> None:
    executor = SerialExecutor(tmp_path / "lock")
    assert executor.run(lambda: 7) == 7
    with pytest.raises(OSError, match="planted"):
        executor.run(lambda: (_ for _ in ()).throw(OSError("planted")))
    assert executor.run(lambda: executor.run(lambda: "within")) == "within"
    assert pickle.loads(pickle.dumps(executor)).run(lambda: 8) == 8
    assert pickle.loads(pickle.dumps(executor)).path == executor.path


def hold(lock: str, held: Any) -> None:
    SerialExecutor(lock).run(lambda: (held.set(), threading.Event().wait(60)))


def test_L4_a_holder_that_is_killed_sets_the_lock_free(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    held = context.Event()
    holder = context.Process(target=hold, args=(str(tmp_path / "lock"), held))
    holder.start()
    assert held.wait()
    with pytest.raises(TimeoutError, match=r"lock was held by others for 0\.05 s"):
        SerialExecutor(tmp_path / "lock", timeout=0.05).run(lambda: None)
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert SerialExecutor(tmp_path / "lock", timeout=60).run(lambda: "free") == "free"


def test_L7_a_long_wait_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    executor = SerialExecutor(tmp_path / "lock", warn_every_s=0.01)
    inside, told, results = threading.Event(), threading.Event(), []

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.set()

    handler = Told()
    logging.getLogger("torchpipe").addHandler(handler)
    holder = threading.Thread(target=executor.run, args=(lambda: (inside.set(), told.wait(30)),))
    holder.start()
    assert inside.wait()
    results.append(executor.run(lambda: "mine"))
    logging.getLogger("torchpipe").removeHandler(handler)
    holder.join()
    assert results == ["mine"]
    assert "still waiting for the lock" in caplog.text


def nested_in_child(executor: SerialExecutor, result: Any) -> None:
    try:
        executor.run(lambda: None)
        result.put("ran")
    except TimeoutError:
        result.put("waited")


def test_a_child_forked_while_the_lock_is_held_does_not_hold_it(tmp_path: Path) -> None:
    executor = SerialExecutor(tmp_path / "lock", timeout=0.2)
    context = multiprocessing.get_context("fork")
    result = context.SimpleQueue()

    def fork_inside() -> None:
        child = context.Process(target=nested_in_child, args=(executor, result))
        child.start()
        child.join()

    executor.run(fork_inside)
    assert result.get() == "waited"
    result.close()


def test_the_folder_of_the_lock_is_made(tmp_path: Path) -> None:
    assert SerialExecutor(tmp_path / "made" / "when" / "needed").run(lambda: 1) == 1
    (tmp_path / "file").touch()
    impossible = SerialExecutor(tmp_path / "file" / "lock")
    with pytest.raises(OSError, match="file"):
        impossible.run(lambda: None)
