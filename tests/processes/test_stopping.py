"""How processes are ended: asked, then terminated, then killed, all of them at once."""

from __future__ import annotations

import logging
import os
import signal

import pytest

from reading_services.processes import process as module
from reading_services.processes.process import stop_all
from tests.processes.rig import (
    made,
    sleep,
    sleep_deaf,
    started,
    tell_and_sleep_deaf,
    wait_busy,
    wait_for_main,
)


@pytest.mark.nightly
def test_each_is_ended_by_the_mildest_means_that_it_heeds(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [started(target) for target in (sleep, sleep, sleep_deaf, wait_for_main)]
    for worker in workers:
        wait_busy(worker)
    os.kill(workers[1].pid, signal.SIGSTOP)
    # However long the last one takes on a loaded machine: none of the signals is meant for it
    monkeypatch.setattr(module, "_GRACE_S", 5.0)
    processes = [worker.process for worker in workers]
    stop_all(workers)
    assert [process.exitcode for process in processes] == [-signal.SIGTERM, -signal.SIGKILL, -signal.SIGKILL, 0]
    assert not any(worker.is_alive() for worker in workers)
    assert not any(os.path.exists(f"/proc/{worker.pid}") for worker in workers)


def test_an_interrupt_takes_it_to_the_last_means() -> None:
    """Else the processes would live for as long as the main one, which would wait for them at its exit for ever."""
    worker = started(tell_and_sleep_deaf)
    wait_busy(worker)
    with pytest.raises(KeyboardInterrupt):
        stop_all([worker])
    assert not worker.is_alive()
    assert not os.path.exists(f"/proc/{worker.pid}")


def test_one_that_was_never_started_can_be_stopped() -> None:
    stop_all([made(sleep)])


def test_one_that_survives_is_reported(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_GRACE_S", "_KILLED_S"):
        monkeypatch.setattr(module, name, 0.02)
    worker = started(sleep)
    wait_busy(worker)
    process = worker.process
    monkeypatch.setattr(worker, "signal", lambda number: None)  # as if it hung inside the kernel
    with caplog.at_level(logging.ERROR, "torchpipe"):
        stop_all([worker])
    assert f"worker 0 (pid {worker.pid}) survived SIGKILL" in caplog.text
    process.kill()
    process.join()
