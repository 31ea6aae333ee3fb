"""L7 where handling a message raises in your process: what the worker had sent besides is not lost."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2, InProcessReadingService, SnapshotPolicy
from torchpipe.errors import ReplayWarning
from torchpipe.iter import IterableWrapper


class Held:
    """Cannot be pickled: no snapshot can be taken while a buffer holds it, which workers tell by a warning."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.lock = threading.Lock()


def graph() -> Any:
    source = IterableWrapper(range(300)).sharding_filter()
    return source.map(Held).shuffle(buffer_size=10).map(lambda held: held.number)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_L7_a_warning_made_an_error_loses_nothing(num_workers: int) -> None:
    with DataLoader2(graph(), reading_service=InProcessReadingService(num_shards=num_workers)) as oracle:
        oracle.seed(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReplayWarning)
            expected = list(oracle)
    service = MultiProcessingReadingService(num_workers, policy=lambda: SnapshotPolicy(every=5))
    received: list[int] = []
    raised = 0
    with DataLoader2(graph(), reading_service=service) as loader:
        loader.seed(3)
        with warnings.catch_warnings():
            warnings.simplefilter("error", ReplayWarning)
            while len(received) < len(expected):
                try:
                    received.extend(loader)
                except ReplayWarning:
                    raised += 1
                    loader.load_state_dict(loader.state_dict())
                    warnings.simplefilter("ignore", ReplayWarning)
    assert raised >= 1
    assert received == expected
