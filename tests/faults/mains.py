"""A main process that saves its position after every item, and that can be struck at any moment.

:func:`train` runs in a process of its own, forked from the tests so that torch need not be imported again; the rest
runs in the test's. The process leads a session, so that nobody whom it started can hide.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.faults.drive import GIVE_UP_AT, LENGTH, SHARDS, draw, service_for
from tests.faults.inflict import Fault, inflict
from tests.laws.executors import make_loader, pids
from tests.sources import wait_until
from torchpipe import InProcessReadingService
from torchpipe.iter import IterableWrapper
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator

__all__ = [
    "EPOCHS",
    "STOPPED_S",
    "die_over_stopped_workers",
    "expected_items",
    "graph_for",
    "resumed_items",
    "saved_position",
    "survivors",
    "train",
]

EPOCHS = 2
STOPPED_S = 4.5  # how long a main process is stopped: longer than its workers are given to show that they live
_NUMBER = 9


class Bell:
    """Sends SIGUSR1 to process ``main`` when ``moment`` has come; 0: to nobody. Hidden, so no part of the graph."""

    def __init__(self, main: int, moment: str) -> None:
        self._main, self._moment = main, moment

    def __call__(self, moment: str) -> bool:
        """Did it ring?"""
        if moment == self._moment and self._main:
            os.kill(self._main, signal.SIGUSR1)
            return True
        return False


class Telltale(IterDataPipe[Any]):
    """Hands items on in a worker, and rings."""

    def __init__(self, source_datapipe: IterDataPipe[Any], bell: Bell) -> None:
        self.source_datapipe = source_datapipe
        self.bell = bell

    def iterate(self, context: Context) -> NodeIterator[Any]:
        return _TelltaleIterator(self, context, self.source_datapipe)


class _TelltaleIterator(NodeIterator[Any]):
    node: Telltale

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            if item == _NUMBER:
                self.node.bell("mid-item")
            yield item

    def close(self) -> None:
        closed = self.pass_engine.is_closed
        super().close()
        if not closed and self.node.bell("while stopping"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the main process has to go up the whole ladder
            threading.Event().wait(60)


def graph_for(main: int, moment: str) -> Any:
    source = IterableWrapper(range(LENGTH)).sharding_filter()
    return Telltale(source, Bell(main, moment)).map(draw).shuffle(buffer_size=3)


def train(fault: Fault, context: str) -> None:
    """Two epochs; what is delivered is noted in ``items``, the position in ``state``."""
    os.setsid()
    folder = Path(fault.folder)
    service = service_for(context, timeout=STOPPED_S / 1.5 if fault.what == "SIGSTOP" else None)
    loader = make_loader(graph_for(os.getpid(), fault.moment), service)
    signal.signal(signal.SIGUSR1, lambda *_: fault.strike())
    fault.arm()
    count = 0
    with open(folder / "items", "w", buffering=1) as items:
        for _ in range(EPOCHS):
            iterator = iter(loader)
            fault.at("start")
            for item in iterator:
                items.write(repr(item) + "\n")
                count += 1
                if count == LENGTH:
                    fault.at("last item")
                save(loader, count, fault)
                if count == GIVE_UP_AT and fault.moment == "while stopping":
                    loader.shutdown()
                    return
            fault.at("epoch boundary")
    (folder / "restarts").write_text(str(service.restarts))
    loader.shutdown()


def die_over_stopped_workers(context: str) -> None:
    """Killed when all of its workers are stopped: they cannot see it themselves."""
    os.setsid()
    loader = make_loader(graph_for(0, ""), service_for(context))
    stream = iter(loader)
    for _ in range(SHARDS):  # an item from each of them: one that has just begun has not asked for the signal yet
        next(stream)
    for pid in pids(loader):
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)  # noqa: B023
    inflict("SIGKILL")


def save(loader: Any, count: int, fault: Fault) -> None:
    path = Path(fault.folder, "state")
    with open(path.with_suffix(".new"), "wb") as file:
        data = pickle.dumps((count, loader.state_dict()))
        file.write(data[: len(data) // 2])
        if count == GIVE_UP_AT:
            fault.at("during a snapshot")
        file.write(data[len(data) // 2 :])
    os.replace(path.with_suffix(".new"), path)


def saved_position(folder: Path) -> tuple[int, Any]:
    """How many items were delivered before the last saved state, and the state; None where there is none."""
    try:
        return pickle.loads((folder / "state").read_bytes())  # type: ignore[no-any-return]
    except FileNotFoundError:
        return 0, None


def survivors(session: int) -> list[psutil.Process]:
    """The processes of that session that live; one that its new parent has yet to reap does not."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def expected_items() -> list[str]:
    """The stream of both epochs, in process."""
    with make_loader(graph_for(0, ""), _in_process()) as loader:
        return [repr(item) for _ in range(EPOCHS) for item in loader]


def resumed_items(state: Any, count: int) -> list[str]:
    """What comes after ``state``, of which ``count`` items were delivered, in process."""
    with make_loader(graph_for(0, ""), _in_process()) as loader:
        if state is not None:
            loader.load_state_dict(state)
        got: list[str] = []
        while count + len(got) < EPOCHS * LENGTH:
            got += [repr(item) for item in loader]
        return got


def _in_process() -> Any:
    return InProcessReadingService(num_shards=SHARDS)
