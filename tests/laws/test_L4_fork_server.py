"""L4, recovery: the server that forks workers under forkserver is a process as well, and may die as they may."""

from __future__ import annotations

import signal
from collections.abc import Callable
from multiprocessing import forkserver
from typing import Any

import pytest

from reading_services import Restart
from tests.laws.executors import make_loader, make_service, oracle, pids
from tests.laws.test_L4_recovery import DISPATCHED, RICH, kill
from torchpipe import DataLoader2


def server() -> int:
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    assert isinstance(pid, int)
    return pid


def alone(loader: DataLoader2[Any]) -> None:
    kill(server(), signal.SIGKILL)


def with_all_that_it_forked(loader: DataLoader2[Any]) -> None:
    """At one blow, as what kills a whole group of processes does."""
    for pid in [server(), *pids(loader)]:
        kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("strike", [alone, pytest.param(with_all_that_it_forked, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "spec",
    [pytest.param(RICH, id="sharding_filter", marks=pytest.mark.nightly), pytest.param(DISPATCHED, id="dispatcher")],
)
def test_L4_the_server_may_die(spec: Any, strike: Callable[[DataLoader2[Any]], None]) -> None:
    [expected], got = oracle(spec, 2, epochs=1), []
    with make_loader(
        spec, make_service(2, 2, context="forkserver", worker_prefetch_cnt=2, on_worker_death=Restart(max_deaths=10))
    ) as loader:
        for item in loader:
            got.append(repr(item))
            if len(got) % 10 == 1:
                strike(loader)
                for pid in pids(loader):  # while the server is gone, or is being replaced
                    kill(pid, signal.SIGKILL)
        assert loader.reading_service.restarts > 0  # type: ignore[attr-defined]
    assert got == expected
