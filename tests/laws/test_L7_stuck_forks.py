"""L7, never stuck: a process that is forked while another thread holds a lock may wait for it for ever.

CPython up to 3.11 has such a lock (python/cpython#112275), which the threads of a process group were seen to hold; here
it is one of a hook, as libraries have them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reading_services._supervision import vital_signs
from tests import leaks
from tests.data.datasets import Numbers
from tests.laws.executors import make_loader, make_service, oracle
from tests.laws.graphs import text_of
from torchpipe import DataLoader
from torchpipe.errors import WorkerDiedError
from torchpipe.iter import IterableWrapper

LENGTH = 24


class Hook:
    """Of the forks to come, that which ``strikes`` says gets stuck: (which it is) -> bool."""

    def __init__(self) -> None:
        self.strikes: Callable[[int], bool] | None = None
        self.forks = 0
        self._lock = threading.Lock()
        self._held = threading.Thread(target=self._lock.acquire)

    def plant(self, strikes: Callable[[int], bool]) -> None:
        self.strikes, self.forks = strikes, 0
        if not self._lock.locked():
            self._held.start()
            self._held.join()

    def in_child(self) -> None:
        if self.strikes is not None and self.strikes(self.forks):
            self._lock.acquire()

    def in_parent(self) -> None:
        self.forks += 1


HOOK = Hook()
os.register_at_fork(after_in_child=HOOK.in_child, after_in_parent=HOOK.in_parent)


@pytest.fixture(autouse=True)
def quickly_found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(vital_signs, "_ASLEEP_S", 0.5)
    yield
    HOOK.strikes = None


def filtered() -> Any:
    return IterableWrapper(range(LENGTH)).shuffle().sharding_filter().map(str)


def dealt() -> Any:
    return IterableWrapper(range(LENGTH)).shuffle().sharding_round_robin_dispatch().map(str)


@pytest.mark.parametrize("graph", [filtered, dealt], ids=["workers", "dispatcher"])
def test_L7_a_process_that_is_stuck_in_its_fork_is_replaced(graph: Callable[[], Any]) -> None:
    [expected] = oracle(graph(), 2, epochs=1)
    for number in range(3 if graph is dealt else 2):
        HOOK.plant(lambda fork, number=number: fork == number)  # type: ignore[misc]
        with make_loader(graph(), make_service(2, 2)) as loader:
            assert text_of(loader) == expected
            assert loader.reading_service.restarts >= 1  # type: ignore[attr-defined]


def test_L7_of_a_data_loader_too() -> None:
    HOOK.plant(lambda fork: fork == 1)
    with DataLoader(Numbers(LENGTH), 4, num_workers=2, multiprocessing_context="fork") as loader:
        found = [batch.tolist() for batch in loader]
    assert found == [batch.tolist() for batch in DataLoader(Numbers(LENGTH), 4)]
    assert HOOK.forks >= 3


@pytest.mark.parametrize("graph", [filtered, dealt], ids=["workers", "dispatcher"])
def test_L7_a_lock_that_is_never_released_is_named(graph: Callable[[], Any]) -> None:
    before = leaks.Footprint.take()
    HOOK.plant(lambda fork: True)
    named = pytest.raises(WorkerDiedError, match=r"a lock that another thread held then.*forkserver")
    with make_loader(graph(), make_service(2, 2)) as loader, named as caught:
        list(loader)
    assert caught.value.exitcode == -9
    del caught, loader
    assert leaks.wait_nothing_left(before) == []


def test_L6_one_that_is_stuck_in_its_fork_ends_with_the_loader() -> None:
    before = leaks.Footprint.take()
    HOOK.plant(lambda fork: True)
    with make_loader(filtered(), make_service(2, 2)) as loader:
        iter(loader)
    del loader
    assert leaks.wait_nothing_left(before) == []
