"""L7 where handling a message raises in your process: what the worker had sent besides is not lost."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.errors import ReplayWarning
from torchpipe.iter import IterableWrapper
from torchpipe.state import SnapshotPolicy


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


def warns(datapipe: Any, info: Any) -> Any:
    warnings.warn("an old name", DeprecationWarning, stacklevel=1)
    warnings.warn("a word", FutureWarning, stacklevel=1)
    return datapipe


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_L7_warnings_of_a_workers_start_are_of_their_class_and_those_that_are_ignored_stay_so(context: str) -> None:
    service = MultiProcessingReadingService(1, worker_init_fn=warns, multiprocessing_context=context)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("always", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        with DataLoader2(IterableWrapper(range(3)).sharding_filter(), reading_service=service) as loader:
            assert list(loader) == [0, 1, 2]
    assert [(item.category, str(item.message)) for item in caught] == [(FutureWarning, "a word")]
