"""L4, recovery: a process that keeps dying is given time, and nobody has to wait for that who wants to stop."""

from __future__ import annotations

import logging
import os
import threading

import pytest

from reading_services import Restart
from reading_services.engine import recovery
from tests.laws.executors import make_loader, make_service
from tests.sources import wait_until
from torchpipe.errors import IteratorInvalidated, WorkerDiedError
from torchpipe.iter import IterableWrapper


def die(item: int) -> int:
    if item == 5:
        os._exit(1)
    return item


def test_L4_each_restart_is_told_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    graph = IterableWrapper(range(10)).sharding_filter().map(die)
    with make_loader(graph, make_service(2, 2, on_worker_death=Restart(max_deaths=5))) as loader:
        with (
            caplog.at_level(logging.WARNING, "torchpipe"),
            pytest.raises(WorkerDiedError, match="it has died 5 times here"),
        ):
            list(loader)
        assert sum("restarting it at its last position" in record.getMessage() for record in caplog.records) == 4
        service = loader.reading_service
        assert service.restarts == 4  # type: ignore[attr-defined]
    assert service.restarts == 4  # type: ignore[attr-defined]  # it counts for the life of the service


@pytest.mark.parametrize("prefetch", [0, 10])
def test_L4_a_delay_holds_up_no_shutdown(
    prefetch: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "restart_delay_s", lambda deaths: 1000.0 if deaths > 2 else 0.0)
    graph = IterableWrapper(range(10)).sharding_filter().map(die)
    with make_loader(
        graph, make_service(2, 2, on_worker_death=Restart(max_deaths=1000), main_prefetch_cnt=prefetch)
    ) as loader:
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
