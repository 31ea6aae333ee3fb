"""L4, recovery: a process that keeps dying is given time, and nobody has to wait for that who wants to stop."""

from __future__ import annotations

import itertools
import logging
import os
import threading

import pytest

from reading_services._supervision import recovery, vital_signs
from reading_services._supervision.recovery import restart_delay_s
from reading_services._supervision.vital_signs import VitalSigns
from reading_services._transport.status_page import Field, StatusPage
from tests.laws.executors import make_loader, make_service
from tests.sources import wait_until
from torchpipe.errors import IteratorInvalidated, WorkerDiedError
from torchpipe.iter import IterableWrapper


class Clock:
    """The monotonic one, as a process that looks often sees it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


def missing(signs: VitalSigns, clock: Clock, after_s: float) -> bool:
    """Is it, with a time limit of 30 s, when it was looked at every 5 s?"""
    for _ in range(round(after_s / 5)):
        clock.now_s += 5
        found = signs.missing_for(30)
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(vital_signs, "time", clock)
    return clock


def test_L4_a_slow_start_is_no_silence(clock: Clock) -> None:
    """A process that took longer to start than the timeout was killed as it became ready, again and again."""
    page = StatusPage()
    signs = VitalSigns(page)
    signs.started(os.getpid(), forked=False)
    assert not missing(signs, clock, 60)  # it is still starting
    signs.say_ready()
    assert not missing(signs, clock, 30)
    assert missing(signs, clock, 5)
    page.close()


def test_L4_a_time_in_which_nobody_looked_is_no_silence(clock: Clock) -> None:
    """Both sides may have been stopped."""
    page = StatusPage()
    signs = VitalSigns(page)
    signs.started(os.getpid(), forked=False)
    signs.say_ready()
    assert not missing(signs, clock, 15)
    clock.now_s += 3600
    assert not missing(signs, clock, 5)  # the process has had no time to beat
    assert missing(signs, clock, 15)
    page[Field.BEAT] += 1
    assert not missing(signs, clock, 30)
    assert missing(signs, clock, 10)
    page.close()


def test_L4_delays_double_and_are_bounded() -> None:
    assert [restart_delay_s(deaths) for deaths in range(1, 6)] == [0, 0.1, 0.2, 0.4, 0.8]
    assert restart_delay_s(7) == restart_delay_s(10_000) == 3.0


def die(item: int) -> int:
    if item == 5:
        os._exit(1)
    return item


def test_L4_restarts_at_one_position_are_spaced(caplog: pytest.LogCaptureFixture) -> None:
    graph = IterableWrapper(range(10)).sharding_filter().map(die)
    with make_loader(graph, make_service(2, 2, max_deaths=5)) as loader:
        with (
            caplog.at_level(logging.WARNING, "torchpipe"),
            pytest.raises(WorkerDiedError, match="it has died 5 times here"),
        ):
            list(loader)
        times = [record.created for record in caplog.records if "starting it anew" in record.getMessage()]
        assert len(times) == 4
        for (earlier, later), delay in zip(itertools.pairwise(times), [0, 0.1, 0.2]):
            assert later - earlier >= delay - 0.01
        service = loader.reading_service
        assert service.restarts == 4  # type: ignore[attr-defined]
    assert service.restarts == 4  # type: ignore[attr-defined]  # it counts for the life of the service


@pytest.mark.parametrize("prefetch", [0, 10])
def test_L4_a_delay_holds_up_no_shutdown(
    prefetch: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "restart_delay_s", lambda deaths: 1000.0 if deaths > 2 else 0.0)
    graph = IterableWrapper(range(10)).sharding_filter().map(die)
    with make_loader(graph, make_service(2, 2, max_deaths=1000, main_prefetch_cnt=prefetch)) as loader:
        iterator = iter(loader)
        assert [next(iterator) for _ in range(5)] == list(range(5))
        errors: list[BaseException] = []

        def wait_for_more() -> None:
            try:
                next(iterator)
            except BaseException as error:
                errors.append(error)

        waiting = threading.Thread(target=wait_for_more)
        with caplog.at_level(logging.WARNING, "torchpipe"):
            waiting.start()
            wait_until(lambda: len(caplog.records) == 3)
            loader.shutdown()
            waiting.join()
        assert [type(error) for error in errors] == [IteratorInvalidated]
