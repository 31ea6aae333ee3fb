"""The kit for reading services: torchpipe's own pass it, and services that break a law do not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from reading_services import InProcessReadingService, MultiProcessingReadingService, ReadingServiceInterface
from torchpipe import NodeIterator
from torchpipe.execution.preparing import StreamOver
from torchpipe.execution.reading_service import EpochStart
from torchpipe.testing import check_reading_service


def test_in_process_passes() -> None:
    check_reading_service(lambda shards: InProcessReadingService(num_shards=shards), num_shards=3)


def kill_one(service: ReadingServiceInterface) -> None:
    assert isinstance(service, MultiProcessingReadingService)
    pids = service.worker_pids()
    if pids:
        os.kill(pids[0], signal.SIGKILL)


@pytest.mark.timeout(1200)  # dozens of loaders, each with processes of its own
@pytest.mark.parametrize(
    "context", ["fork", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("forkserver", "spawn"))]
)
def test_worker_processes_pass(context: str) -> None:
    slow = context == "spawn"  # a process takes seconds to start there
    check_reading_service(
        lambda shards: MultiProcessingReadingService(1 if slow else 2, context, num_shards=shards),
        num_shards=2,
        crash=kill_one,
        thorough=not slow,
    )


class LosesAnItem(StreamOver):
    def run(self) -> Iterator[Any]:
        for index, item in enumerate(self.source.items()):
            if index != 4:
                yield item


class EndsQuietlyOnErrors(StreamOver):
    def run(self) -> Iterator[Any]:
        try:
            yield from self.source.items()
        except ZeroDivisionError:
            return


class CountsWhatItPrefetched(StreamOver):
    def run(self) -> Iterator[Any]:
        stream = self.source.items()
        ready = [item for _, item in zip(range(1), stream)]
        for item in stream:
            ready.append(item)
            yield ready.pop(0)
        yield from ready


class ForgetsTheState(StreamOver):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def service_with(fault: type[StreamOver]) -> type[InProcessReadingService]:
    class Faulty(InProcessReadingService):
        def initialize_iteration(self, start: EpochStart) -> NodeIterator[Any]:
            inner = super().initialize_iteration(EpochStart(**{**vars(start), "state": None}))
            iterator = fault(inner)
            if start.state is not None:
                iterator.load_state_dict(start.state)
            return iterator

    return Faulty


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (LosesAnItem, "differs from in-process"),
        (EndsQuietlyOnErrors, "exception did not arrive"),
        (CountsWhatItPrefetched, "resumed after"),
        (ForgetsTheState, "resumed after"),
    ],
)
def test_faults_are_found(fault: type[StreamOver], message: str) -> None:
    service = service_with(fault)
    with pytest.raises(AssertionError, match=message):
        check_reading_service(lambda shards: service(num_shards=shards))


def test_a_service_that_leaves_threads_is_found() -> None:
    import threading

    done = threading.Event()

    class Leaky(InProcessReadingService):
        def initialize_iteration(self, start: EpochStart) -> NodeIterator[Any]:
            threading.Thread(target=done.wait, name="left-over", daemon=True).start()
            return super().initialize_iteration(start)

    try:
        with pytest.raises(AssertionError, match="left-over"):
            check_reading_service(lambda shards: Leaky(num_shards=shards))
    finally:
        done.set()
