"""The matrix, cell by cell: the device stage's thread. What it cannot do is an error at its place, never a hang."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.faults.drive import LENGTH, SHARDS, service_for
from tests.faults.inflict import Fault, Struck, Vulnerable
from tests.laws.executors import make_loader, make_service, pids
from tests.sources import feed_threads, wait_until
from torchpipe.errors import IteratorInvalidated
from torchpipe.iter import IterableWrapper


class InMain(Vulnerable):
    """Vulnerable in the main process, where the device stage's thread pulls it."""

    runs_in_main = True


def graph_for(fault: Fault) -> Any:
    return InMain(IterableWrapper(range(LENGTH)).sharding_filter(), fault).to_device("cpu")


@pytest.mark.parametrize("moment", ["mid-item", "during a snapshot", "last item"])
def test_an_exception_is_raised_at_its_place(moment: str, tmp_path: Path) -> None:
    fault = Fault(str(tmp_path), "exception", moment, {"mid-item": 9, "last item": LENGTH - 1}.get(moment, -1))
    got = []
    with make_loader(graph_for(fault), service_for("fork")) as loader:
        fault.arm()
        with pytest.raises(Struck) as raised:
            for item in loader:
                got.append(item)
        if moment != "during a snapshot":
            assert "in the thread of ToDevice" in "\n".join(raised.value.__notes__)
        assert loader.state_dict()["delivered"] == len(got)
        assert moment == "during a snapshot" or len(got) == fault.number
        loader.load_state_dict(loader.state_dict())
        got += list(loader)
    assert got == list(range(LENGTH))


def test_an_exception_while_a_pass_is_closed_is_raised_and_leaves_nothing(tmp_path: Path) -> None:
    fault = Fault(str(tmp_path), "exception", "pass given up")
    loader = make_loader(graph_for(fault), service_for("fork"))
    next(iter(loader))
    fault.arm()
    with pytest.raises(Struck):
        loader.shutdown()
    loader.shutdown()


class Leaves:
    """A backend that ends its thread as a program ends itself."""

    name, releases_source = "leaves", True

    def __init__(self, number: int) -> None:
        self.number = number

    def prepare(self) -> None:
        pass

    def transfer(self, batch: Any, /) -> Any:
        if batch == self.number:
            raise SystemExit(3)
        return batch

    def receive(self, moved: Any, /) -> Any:
        return moved

    def close(self) -> None:
        pass


@pytest.mark.parametrize("number", [0, 9, LENGTH - 1])
def test_an_exit_in_the_thread_reaches_the_program(number: int) -> None:
    """It would have ended the program from any other place."""
    graph = IterableWrapper(range(LENGTH)).sharding_filter().to_device(Leaves(number))
    got = []
    with make_loader(graph, service_for("fork")) as loader:
        with pytest.raises(SystemExit):
            for item in loader:
                got.append(item)
        assert loader.state_dict()["delivered"] == number
    assert got == list(range(number))


def test_a_thread_that_waits_for_a_stopped_worker_is_woken_by_shutdown() -> None:
    """Without a timeout nobody looks whether the worker lives; the consumer waits in another thread."""
    graph = IterableWrapper(range(10_000)).sharding_filter().to_device("cpu")
    loader = make_loader(graph, make_service(2, SHARDS, worker_prefetch_cnt=4))
    iterator, errors = iter(loader), []
    next(iterator)
    stopped = pids(loader)[0]
    os.kill(stopped, signal.SIGSTOP)

    def consume() -> None:
        try:
            for _ in iterator:
                pass
        except IteratorInvalidated as error:
            errors.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    ahead = iterator._pass.stream
    wait_until(lambda: ahead._ahead._feed.consumer_waits)  # type: ignore[attr-defined]
    loader.shutdown()
    consumer.join()
    assert not consumer.is_alive()
    assert len(errors) == 1
    assert feed_threads() == []


def test_a_worker_that_dies_under_the_device_thread_is_replaced() -> None:
    expected = list(range(LENGTH))
    with make_loader(IterableWrapper(expected).sharding_filter().to_device("cpu"), service_for("fork")) as loader:
        got = []
        for item in loader:
            got.append(item)
            if item == 3:
                for pid in pids(loader):
                    os.kill(pid, signal.SIGKILL)
        assert got == expected
        assert list(loader) == expected
        assert loader.reading_service.restarts == 2  # type: ignore[attr-defined]
