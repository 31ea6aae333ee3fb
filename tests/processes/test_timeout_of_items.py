"""``timeout=`` is about one item: quick ones that turn slow, and what the error says to do."""

from __future__ import annotations

import time

import pytest

from reading_services import MultiProcessingReadingService, Restart
from torchpipe import DataLoader2
from torchpipe.errors import WorkerDiedError
from torchpipe.iter import IterableWrapper


def slow_from_2000(item: int) -> int:
    if item >= 2000:
        time.sleep(0.15)
    return item


@pytest.mark.parametrize("dispatched", [False, True])
def test_L4_quick_items_that_turn_slow_are_no_hang(dispatched: bool) -> None:
    """Quick ones are begun several at a time, else; 20 slow ones together take longer than the timeout."""
    graph = IterableWrapper(range(2020)).map(slow_from_2000)
    graph = graph.sharding_round_robin_dispatch() if dispatched else graph.sharding_filter()
    service = MultiProcessingReadingService(1, timeout=1.0, on_worker_death=Restart(max_restarts=0))
    with DataLoader2(graph, reading_service=service) as loader:
        assert list(loader) == list(range(2020))


def test_L7_the_error_after_a_timeout_names_it() -> None:
    graph = IterableWrapper(range(3)).sharding_filter().map(lambda item: time.sleep(60))
    service = MultiProcessingReadingService(1, timeout=3.0, on_worker_death=Restart(max_deaths=1))
    with DataLoader2(graph, reading_service=service) as loader, pytest.raises(WorkerDiedError) as caught:
        list(loader)
    assert "made no progress within the timeout" in str(caught.value)
    assert "give more of timeout=" in str(caught.value)
    assert "memory" not in str(caught.value)
