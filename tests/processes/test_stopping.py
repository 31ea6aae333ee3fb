"""How processes are ended: asked, then terminated, then killed, all of them at once."""

from __future__ import annotations

import logging
import os
import signal

import pytest

from reading_services.processes import stopping
from reading_services.processes.stopping import stop_all
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
    places = [started(target) for target in (sleep, sleep, sleep_deaf, wait_for_main)]
    for place in places:
        wait_busy(place)
    os.kill(places[1].pid, signal.SIGSTOP)
    # However long the last one takes on a loaded machine: none of the signals is meant for it
    monkeypatch.setattr(stopping, "_GRACE_S", 5.0)
    processes = [place.process for place in places]
    stop_all(places)
    assert [process.exitcode for process in processes] == [-signal.SIGTERM, -signal.SIGKILL, -signal.SIGKILL, 0]
    assert not any(place.is_alive() for place in places)
    assert not any(os.path.exists(f"/proc/{place.pid}") for place in places)


def test_an_interrupt_takes_it_to_the_last_means() -> None:
    """Else the processes would live for as long as the main one, which would wait for them at its exit for ever."""
    place = started(tell_and_sleep_deaf)
    wait_busy(place)
    with pytest.raises(KeyboardInterrupt):
        stop_all([place])
    assert not place.is_alive()
    assert not os.path.exists(f"/proc/{place.pid}")


def test_one_that_was_never_started_can_be_stopped() -> None:
    stop_all([made(sleep)])


def test_one_that_survives_is_reported(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_GRACE_S", "_KILLED_S"):
        monkeypatch.setattr(stopping, name, 0.02)
    place = started(sleep)
    wait_busy(place)
    process = place.process
    monkeypatch.setattr(place, "signal", lambda number: None)  # as if it hung inside the kernel
    with caplog.at_level(logging.ERROR, "torchpipe"):
        stop_all([place])
    assert f"worker 0 (pid {place.pid}) survived SIGKILL" in caplog.text
    process.kill()
    process.join()
