"""L6 through ``DataLoader``: nothing is left behind, however a run ends. The fixture in conftest takes the measure."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.utils.data import SequentialSampler

from tests import leaks
from tests.data.datasets import Augmented, FailingAt, Lines
from tests.laws.test_L6_nothing_left_behind import struck_script, wait_gone
from tests.warm import Warm
from torchpipe import DataLoader
from torchpipe.device.backend import CpuBackend
from torchpipe.errors import IteratorInvalidated, ReplayWarning

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
    "two at once",
    "thrown into",
)


def no() -> Exception:
    return ValueError("no")


def end(ending: str, data: Any, **options: Any) -> None:
    loader: DataLoader[Any] = DataLoader(data, 2, **options)
    match ending:
        case "end":
            list(loader)
        case "break":
            for _ in loader:
                break
        case "shutdown":
            next(iter(loader))
        case "exception":
            loader = DataLoader(FailingAt(20, (9,), no), 2, **options)
            with pytest.raises(ValueError, match="no"):
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
            iterator = iter(loader)
            next(iterator)
            for pid in loader.worker_pids():
                os.kill(pid, signal.SIGKILL)
        case "two at once":
            first, second = iter(loader), iter(loader)
            next(second)
            with pytest.raises(IteratorInvalidated):
                next(first)
        case "thrown into":
            with pytest.raises(KeyboardInterrupt):
                for _ in loader:
                    raise KeyboardInterrupt
    loader.shutdown()
    loader.shutdown()  # idempotent


@pytest.mark.parametrize("data", [Augmented(30), Lines(30)], ids=["map-style", "iterable"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_L6_however_a_run_ends(ending: str, data: Any) -> None:
    for options in ({"num_workers": 0}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}):
        if not (ending == "exception" and options.get("persistent_workers")):
            end(ending, data, **options)


@pytest.mark.parametrize("device", ["cpu"])
def test_L6_with_a_device_stage(device: str) -> None:
    for ending in ("break", "exception", "forgotten", "second iter", "load"):
        end(ending, Augmented(30), num_workers=1, device=device)
        end(ending, Augmented(30), device=device)


class NoDevice(CpuBackend):
    def prepare(self) -> None:
        raise OSError("no device")


class Interrupting(SequentialSampler):
    def __iter__(self) -> Iterator[int]:
        yield 0
        raise KeyboardInterrupt


class Plain(Lines):
    """Draws nothing: what is drawn in threads is not the same again, so that a replay of it is refused."""

    def __iter__(self) -> Iterator[Any]:
        return (line[0] for line in super().__iter__())


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_L6_an_epoch_that_cannot_begin_leaves_nothing_while_its_error_lives(method: Any) -> None:
    workers: dict[str, Any] = {"num_workers": 2, "worker_method": method}
    resumed: DataLoader[Any] = DataLoader(Plain(30), 2, **workers)
    next(iter(resumed))
    resumed.load_state_dict(resumed.state_dict())
    failing: list[tuple[DataLoader[Any], type[BaseException]]] = [
        (DataLoader(Augmented(30), 2, device=NoDevice(), **workers), OSError),
        (DataLoader(Lines(30), 2, device=NoDevice(), **workers), OSError),
        (DataLoader(Augmented(30), 1, sampler=Interrupting(range(30)), **workers), KeyboardInterrupt),
    ]
    if method == "multiprocessing":
        failing.append((resumed, ReplayWarning))  # before anything has started; threads say it as they start
    for loader, kind in failing:
        with warnings.catch_warnings(), pytest.raises(kind) as caught:
            warnings.simplefilter("error")
            iter(loader)
        assert multiprocessing.active_children() == [], caught.value
        assert [thread for thread in threading.enumerate() if "worker thread" in thread.name] == [], caught.value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(list(resumed)) == 15, "of 16, one was handed out before"
    resumed.shutdown()


def test_L6_under_another_start_method() -> None:
    for ending in ("break", "forgotten"):
        end(ending, Augmented(30), num_workers=1, multiprocessing_context="forkserver")


def test_L6_growth_over_epochs() -> None:
    with DataLoader(Augmented(12), 2, num_workers=1, persistent_workers=True) as loader:
        list(loader)
        before = leaks.Footprint.take()
        for _ in range(10):
            next(iter(loader))
            list(loader)
        assert leaks.wait_nothing_left(before) == []


SCRIPT = """
import os, sys, time
from tests.data.datasets import Augmented
from torchpipe import DataLoader

if __name__ == "__main__":
    os.setsid()
    loader = DataLoader(Augmented(1_000_000), 2, num_workers=2, multiprocessing_context=sys.argv[1])
    iterator = iter(loader)
    next(iterator)
    print(*loader.worker_pids(), flush=True)
    for _ in iterator:
        time.sleep(0.01)  # not threading.Event().wait, of which a signal in the wrong instant makes a RuntimeError
"""


@pytest.mark.parametrize(("context", "ending"), [("fork", "SIGKILL"), ("forkserver", "SIGKILL"), ("fork", "SIGINT")])
def test_L6_main_killed(context: str, ending: str, warm: Warm, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done, started = struck_script(warm, script, context, getattr(signal, ending))
    assert len(started) >= 2
    left = wait_gone(started)
    for process in left:
        process.kill()
    assert left == []
    if ending == "SIGINT":
        assert done.stderr.count("Traceback") == 1
        assert done.stderr.rstrip().endswith("KeyboardInterrupt")


def test_L6_daemon_threads_that_iterate_loaders_when_the_program_ends_are_silent() -> None:
    script = Path(__file__).parent / "scripts" / "threads_at_exit.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), "4"], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stderr == ""
    _, *workers = map(int, done.stdout.split())
    assert workers
    assert not any(psutil.pid_exists(pid) for pid in workers)
