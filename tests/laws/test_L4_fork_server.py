"""L4, recovery: the server that forks workers under forkserver is a process as well, and may die as they may."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import forkserver, resource_tracker, spawn
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.laws.executors import make_loader, make_service, oracle, pids
from tests.laws.storm_graphs import GRAPHS, linger
from tests.laws.test_L4_recovery import kill
from tests.laws.test_L4_storms import every, outlast
from tests.sources import wait_until
from tests.warm import Warm
from torchpipe import DataLoader2
from torchpipe.errors import WorkerDiedError
from torchpipe.iter import IterableWrapper

ROOT = Path(__file__).parents[2]


def server() -> list[int]:
    """Its pid, or nothing if it has never been started."""
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return [] if pid is None else [pid]


def all_of(loader: DataLoader2[Any]) -> list[int]:
    return [*server(), *pids(loader)]


def stream(graph: Any, strike: Callable[[DataLoader2[Any]], None]) -> list[str]:
    got = []
    with make_loader(graph, make_service(2, 2, context="forkserver")) as loader:
        for item in loader:
            got.append(repr(item))
            if len(got) % 10 == 1:
                strike(loader)
        assert loader.reading_service.restarts > 0  # type: ignore[attr-defined]
    return got


@pytest.mark.parametrize("graph", GRAPHS)
def test_L4_the_server_may_die_with_all_that_it_forked(graph: str) -> None:
    """At one blow, as what kills a whole group of processes does: it takes a moment until it can be waited for."""

    def strike(loader: DataLoader2[Any]) -> None:
        for pid in all_of(loader):
            kill(pid, signal.SIGKILL)

    slow = GRAPHS[graph](linger)
    assert stream(slow, strike) == oracle(slow, 2)[0]


def test_L4_the_server_alone_may_die() -> None:
    """What it has forked ends with it."""
    graph = GRAPHS["sharding_filter"](linger)
    assert stream(graph, lambda _: kill(server()[0], signal.SIGKILL)) == oracle(graph, 2)[0]


def endless(begun: Path, item: int) -> int:
    if item == 1:
        begun.touch()
        time.sleep(1000)
    return item


def test_L6_what_the_server_leaves_in_the_midst_of_an_item_is_killed(tmp_path: Path) -> None:
    """The kernel sees to that only where the main thread has started it."""
    begun, left = tmp_path / "begun", [0]
    graph = IterableWrapper(range(9)).sharding_filter().map(partial(endless, begun))

    def run() -> None:
        with make_loader(graph, make_service(1, 1, context="forkserver")) as loader:
            assert next(iter(loader)) == 0
            wait_until(begun.exists)
            worker = psutil.Process(pids(loader)[0])
            kill(server()[0], signal.SIGKILL)
            os.waitpid(server()[0], 0)
            assert worker.is_running()
        left[:] = [process.pid for process in psutil.wait_procs([worker], timeout=5)[1]]

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert left == []


@pytest.mark.parametrize("graph", GRAPHS)
def test_L4_a_storm_of_kills_that_strikes_the_server_too_ends_no_run(graph: str) -> None:
    outlast(GRAPHS[graph](), "forkserver", every(0.05), 40, all_of)


def test_L4_a_server_that_somebody_else_has_waited_for_is_replaced() -> None:
    """multiprocessing itself would raise ChildProcessError from then on."""

    def strike(loader: DataLoader2[Any]) -> None:
        pid = server()[0]
        kill(pid, signal.SIGKILL)
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass  # a worker was missed meanwhile, so that multiprocessing has

    graph = GRAPHS["sharding_filter"](linger)
    assert stream(graph, strike) == oracle(graph, 2)[0]


FORKED = """
import os
from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper

def items():
    service = MultiProcessingReadingService(1, multiprocessing_context="forkserver")
    with DataLoader2(IterableWrapper(range(9)).sharding_filter(), reading_service=service) as loader:
        return list(loader)

if __name__ == "__main__":
    first, child = items(), os.fork()
    print(items() == first == list(range(9)), flush=True)
    if child:
        print(os.waitpid(child, 0)[1])
"""


def test_L4_a_process_that_was_forked_off_the_servers_parent_has_a_server_of_its_own(
    warm: Warm, tmp_path: Path
) -> None:
    """It is no child of that process, so that multiprocessing would raise ChildProcessError there."""
    script = tmp_path / "script.py"
    script.write_text(FORKED)
    done = warm.run([str(script)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert sorted(done.stdout.split()) == ["0", "True", "True"], done.stderr


def test_L4_a_server_that_cannot_begin_is_no_accident(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "torchpipe")
    resource_tracker.ensure_running()  # which is the same Python
    for pid in server():
        kill(pid, signal.SIGKILL)
    monkeypatch.setattr(spawn, "_python_exe", b"/bin/false")
    graph = IterableWrapper(range(9)).sharding_filter()
    with make_loader(graph, make_service(1, 1, context="forkserver")) as loader:
        with pytest.raises(WorkerDiedError, match=r"server that was to fork worker 0 \(pid \d+\) exited with code 1"):
            next(iter(loader))
        # The third one is the error. The server that was killed above may be missed before them
        assert sum("exited with code 1" in record.getMessage() for record in caplog.records) == 2
        monkeypatch.undo()
        loader.load_state_dict(loader.state_dict())
        assert list(loader) == list(range(9))
