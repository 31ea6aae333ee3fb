"""L6, nothing left behind: however a run ends. After every test, the fixture in conftest measures what is left."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import leaks
from tests.laws.executors import PROCESSES, make_loader, make_service, pids
from tests.laws.interrupts import Interrupt, Interrupter, before_first
from tests.sources import wait_until
from tests.tries import tries
from tests.warm import Warm
from torchpipe.iter import IterableWrapper
from torchpipe.testing import sample_graph

_PROCESSES = "reading_services.processes."
_PLACES = (
    "reading_services.engine",
    *(_PROCESSES + name for name in ("pool", "process", "signals", "stopping")),
)

ENDINGS = (
    "end",
    "break",
    "shutdown",
    "exception",
    "forgotten",
    "second iter",
    "load",
    "never started",
    "worker killed",
)


def fail_at_nine(item: int) -> int:
    return item // (item - 9) * 0 + item


def end(ending: str, workers: int | None, context: str = "fork") -> None:
    loader = make_loader(sample_graph(), make_service(workers, 2, context=context))
    match ending:
        case "end":
            list(loader)
        case "break":
            for _ in loader:
                break
        case "shutdown":
            next(iter(loader))
        case "exception":
            loader = make_loader(
                IterableWrapper(range(20)).sharding_filter().map(fail_at_nine),
                make_service(workers, 2, context=context),
            )
            with pytest.raises(ZeroDivisionError):
                list(loader)
        case "forgotten":
            next(iter(loader))
            del loader
            gc.collect()
            return
        case "second iter":
            next(iter(loader))
            next(iter(loader))
        case "load":
            next(iter(loader))
            loader.load_state_dict(loader.state_dict())
            next(iter(loader))
        case "worker killed":
            next(iter(loader))
            for pid in pids(loader) if workers else []:
                os.kill(pid, signal.SIGKILL)
    loader.shutdown()
    loader.shutdown()  # idempotent


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("ending", ENDINGS)
def test_L6_however_a_run_ends(ending: str, workers: int | None) -> None:
    end(ending, workers)


@pytest.mark.nightly
@pytest.mark.parametrize("context", ["forkserver", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_L6_under_other_start_methods(context: str) -> None:
    workers = 1 if context == "spawn" else 2  # each of whose workers imports torch anew
    for ending in ("break", "exception", "forgotten"):
        end(ending, workers, context)


DROPPED: dict[str, Any] = {
    "break": lambda loader: next(iter(loader)),
    "second iter": lambda loader: (next(iter(loader)), next(iter(loader))),
    "not pulled": iter,
    "state": lambda loader: (next(iter(loader)), loader.state_dict(), loader.stats()),
    "exception": lambda loader: next(fail_at_nine(9) for _ in loader),
    "paused": lambda loader: _paused(iter(loader)),
    "load": lambda loader: (next(iter(loader)), loader.load_state_dict(loader.state_dict()), next(iter(loader))),
    "iterator last": lambda loader: iter(loader),
}


def _paused(stream: Any) -> None:
    stream.limit(3)
    list(stream)


@pytest.mark.nightly
@pytest.mark.parametrize("ending", DROPPED)
@pytest.mark.parametrize(
    "graph",
    [
        lambda source: source.sharding_filter(),
        lambda source: source.sharding_filter().to_device("cpu"),
        lambda source: source.sharding_filter().to_device("cpu").map(abs),
        lambda source: source.sharding_round_robin_dispatch().filter(bool),
    ],
    ids=["plain", "device", "behind a device", "dispatched"],
)
def test_L6_processes_end_when_the_last_reference_is_dropped(graph: Any, ending: str) -> None:
    """Without a collection: streams are cycles of references, and none may have been due for hours."""
    gc.collect()
    gc.disable()
    try:
        loader = make_loader(graph(IterableWrapper(range(1000))), make_service(2, 2))
        kept = iter(loader)
        running = pids(loader)
        try:
            last = DROPPED[ending](loader)
        except ZeroDivisionError:
            pass
        running += pids(loader)
        if ending == "iterator last":
            del loader, kept
            next(last)
            assert all(psutil.pid_exists(pid) for pid in running)
        else:
            del loader, kept
        last = None
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in running))
    finally:
        gc.enable()


@given(st.lists(st.tuples(st.sampled_from(ENDINGS), st.sampled_from([None, 1, 2])), max_size=3))
@settings(max_examples=tries(8))
def test_L6_any_sequence_of_endings(endings: list[tuple[str, int | None]]) -> None:
    before = leaks.Footprint.take()
    for ending, workers in endings:
        end(ending, workers)
    assert leaks.wait_nothing_left(before) == []


SCRIPT = """
import os, sys, time
from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2
from torchpipe.testing import sample_graph

if __name__ == "__main__":
    os.setsid()
    service = MultiProcessingReadingService(2, sys.argv[1])
    loader = DataLoader2(sample_graph(1_000_000), reading_service=service)
    iterator = iter(loader)
    next(iterator)
    print(*service.worker_pids(), flush=True)
    for _ in iterator:
        time.sleep(0.01)  # not threading.Event().wait, of which a signal in the wrong instant makes a RuntimeError
"""


def struck_script(
    warm: Warm, script: Path, context: str, signal_number: int
) -> tuple[subprocess.CompletedProcess[str], list[psutil.Process]]:
    """A training process of its own, whose group gets a signal once its workers run: what came of it, and all that it
    had started.
    """
    started: list[psutil.Process] = []

    def strike(pid: int, said: Path) -> None:
        wait_until(lambda: said.exists() and said.read_text().endswith("\n"))
        started.extend(psutil.Process(pid).children(recursive=True))
        if signal_number == signal.SIGINT:
            os.killpg(pid, signal_number)  # as a terminal does
        else:
            os.kill(pid, signal_number)

    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = warm.run([str(script), context], cwd=root, env=environment, meanwhile=strike)
    assert len(done.stdout.split()) == 2
    return done, started


def wait_gone(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still live after a minute; a zombie that its new parent has yet to reap does not live."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (alive := [p for p in processes if is_alive(p)]):
        psutil.wait_procs(alive, timeout=0.1)
    return [p for p in processes if is_alive(p)]


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("context", PROCESSES)
def test_L6_main_killed(context: str, warm: Warm, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    _, started = struck_script(warm, script, context, signal.SIGKILL)
    assert len(started) >= 2
    left = wait_gone(started)
    for process in left:
        process.kill()
    assert left == []


def test_L6_ctrl_c(warm: Warm, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done, started = struck_script(warm, script, "fork", signal.SIGINT)
    assert wait_gone(started) == []
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")


def wait_for(file: Path, item: int) -> int:
    deadline = time.monotonic() + 60
    while item and not file.exists():
        if time.monotonic() > deadline:
            file.with_name("in vain").touch()
            break
        time.sleep(0.01)
    return item


def test_L6_ctrl_c_in_the_instant_before_a_wait(tmp_path: Path) -> None:
    """Nothing wakes that wait: as if another thread had been given the signal."""
    graph = IterableWrapper(range(4)).sharding_filter().map(partial(wait_for, tmp_path / "go"))
    loader = make_loader(graph, make_service(1, 1))
    stream = iter(loader)
    assert next(stream) == 0
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
        next(stream)
    (tmp_path / "go").touch()
    assert not (tmp_path / "in vain").exists()
    loader.load_state_dict(loader.state_dict())
    assert list(loader) == [1, 2, 3]
    loader.shutdown()


@pytest.mark.parametrize("when", ["start", "recovery"])
def test_L6_ctrl_c_while_processes_start(when: str) -> None:
    """At any instruction, with a dispatcher and a worker; whoever is interrupted lets go of the loader, no more."""
    struck = set[str | None]()
    for number in range(11, 400, 11):
        before = leaks.Footprint.take()
        loader = make_loader(sample_graph(), make_service(1, 1))
        stream = iter(loader) if when == "recovery" else iter(())
        if when == "recovery":
            next(stream)
            for pid in pids(loader):
                os.kill(pid, signal.SIGKILL)
        interrupter = Interrupter(number, _PLACES)
        try:
            with interrupter:
                next(iter(loader)) if when == "start" else list(stream)
        except Interrupt:
            struck.add(interrupter.hit)
        del loader, stream
        assert leaks.wait_nothing_left(before) == [], interrupter.hit
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, interrupter.hit
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, []), interrupter.hit
    assert len(struck) > 10


def deaf(item: int) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return item


NUMBERS = IterableWrapper(range(40)).sharding_filter()
SHUT: dict[str, tuple[Any, int | None, int]] = {  # a graph, a number of workers, each how-many-th place
    "workers": (NUMBERS.map(deaf), 2, 29),
    "dispatcher": (IterableWrapper(range(40)).sharding_round_robin_dispatch().map(deaf), 1, 41),
    "threads": (NUMBERS.prefetch(3).map(torch.tensor).to_device("cpu", prefetch=2), None, 3),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", SHUT)
def test_L6_an_interrupt_at_any_instruction_of_a_shutdown(name: str) -> None:
    """Whoever is interrupted lets go of the loader, no more."""
    graph, workers, step = SHUT[name]
    struck, number, beyond = set[str | None](), before_first(step), False
    while not beyond:
        number += step
        before = leaks.Footprint.take()
        loader = make_loader(graph, make_service(workers, 2))
        stream = iter(loader)
        next(stream)
        interrupter = Interrupter(number, ("reading_services", "torchpipe"))
        try:
            with interrupter:
                loader.shutdown()
            assert interrupter.hit is None
            beyond = True
        except Interrupt:
            struck.add(interrupter.hit)
        del loader, stream
        assert leaks.wait_nothing_left(before) == [], interrupter.hit
    assert len(struck) > 10


def test_L6_growth_over_epochs() -> None:
    loader = make_loader(sample_graph(), make_service(2, 2))
    with loader:
        list(loader)
        before = leaks.Footprint.take()
        for _ in range(20):
            next(iter(loader))
            list(loader)
        assert leaks.wait_nothing_left(before) == []
