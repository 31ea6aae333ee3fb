"""L6: what a pass has opened in a worker or in the dispatcher is closed when it is given up, whatever that is at."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from reading_services.processes import process
from tests.laws.executors import PROCESSES, make_loader, make_service, pids
from tests.sources import wait_until
from torchpipe import DataLoader2, IterDataPipe
from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper


class Opening:
    """Numbers from what has to be closed, as files and connections have: ``closed`` tells that it was."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __iter__(self) -> Iterator[int]:
        me = os.getpid()
        (self.folder / f"opened {me}").touch()
        try:
            for number in range(1000):
                yield number
                (self.folder / f"made {me} {number}").touch()
        finally:
            (self.folder / f"closed {me}").touch()


class Slow:
    """Takes 0.3 s for each item but the first ones, and says that it is at it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, item: int) -> int:
        if item >= 4:
            (self.folder / f"at {os.getpid()} {item}").touch()
            time.sleep(0.3)
        return item


def names(folder: Path, what: str) -> set[str]:
    return {path.name.split()[1] for path in folder.glob(f"{what} *")}


@pytest.mark.nightly
@pytest.mark.parametrize("dispatched", [False, True], ids=["worker", "dispatcher"])
@pytest.mark.parametrize("context", PROCESSES)
def test_L6_a_shutdown_in_mid_item_closes_what_was_opened(
    context: str, dispatched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the item takes on a loaded machine: who does not come back in a second is ended by SIGTERM
    monkeypatch.setattr(process, "_GRACE_S", 60.0)
    source: Any = IterableWrapper(Opening(tmp_path), deepcopy=False)
    slow = Slow(tmp_path)
    graph = source.map(slow).sharding_round_robin_dispatch() if dispatched else source.sharding_filter().map(slow)
    loader: DataLoader2[Any] = make_loader(graph, make_service(2, 2, context=context))
    stream = iter(loader)
    assert next(stream) == 0
    wait_until(lambda: len(names(tmp_path, "at")) == (1 if dispatched else 2))
    loader.shutdown()
    assert names(tmp_path, "opened") == names(tmp_path, "closed")


class Unsaveable:
    """A function with a state that cannot be had, as a base class's."""

    def __call__(self, item: Any) -> Any:
        return item

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError("no state")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError("no state")


class FailsToClose(IterDataPipe[Any]):
    """Raises as it is closed, as a file on a full disk does."""

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.datapipe
        finally:
            raise OSError("disk full")


class FailsToCloseHere(FailsToClose):
    runs_in_main = True


def divided() -> Any:
    return IterableWrapper(range(100)).sharding_filter()


ENDINGS: dict[str, Any] = {
    "break": lambda loader: next(iter(loader)),
    "end": list,
    "second iter": lambda loader: (next(iter(loader)), next(iter(loader))),
    "load": lambda loader: (next(iter(loader)), loader.load_state_dict(OTHER), next(iter(loader))),
}
OTHER: dict[str, Any] = {}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    "graph",
    [
        lambda: divided().to_device("cpu").map(Unsaveable()),
        lambda: divided().map(Unsaveable()).to_device("cpu"),
        lambda: FailsToCloseHere(divided()),
        lambda: FailsToCloseHere(divided().to_device("cpu")),
        lambda: FailsToCloseHere(divided()).to_device("cpu"),
        lambda: FailsToClose(divided()),
    ],
    ids=["state", "state in workers", "here", "behind a device", "before a device", "in workers"],
)
def test_L6_no_process_remains_where_what_is_closed_raises(graph: Any, ending: str) -> None:
    raised: BaseException | None = None  # kept, as a notebook keeps it: frames that it leads to hold no process
    loader: DataLoader2[Any] = make_loader(graph(), make_service(2, 2))
    OTHER.update(loader.state_dict())
    running: list[int] = []
    try:
        with loader:
            iter(loader)
            running += pids(loader)
            ENDINGS[ending](loader)
    except (NotImplementedError, OSError) as error:
        raised = error
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in running))
    assert running
    loader.shutdown()
    if raised is None:
        assert ending != "end"


def test_L6_a_position_that_cannot_be_saved_is_no_other_one() -> None:
    loader: DataLoader2[Any] = make_loader(divided().to_device("cpu").map(Unsaveable()), make_service(2, 2))
    next(iter(loader))
    loader.shutdown()
    with pytest.raises(StateError, match=r"shut down in mid-epoch.*NotImplementedError: no state.*Load an older"):
        loader.state_dict()
    loader.set_epoch(3)
    assert loader.state_dict()["epoch"] == 3


class Noted(IterDataPipe[int]):
    def __init__(self, closed: list[str]) -> None:
        self.closed = closed

    def __iter__(self) -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            self.closed.append("closed")


class Seen:
    """Appends to a list that private copies of a node share."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def append(self, name: str) -> None:
        self.names.append(name)


@pytest.mark.parametrize("shards", [1, 3])
def test_L6_all_inputs_of_all_shards_are_closed_where_one_raises(shards: int) -> None:
    seen: Any = Seen()
    graph = FailsToClose(Noted(seen)).zip(Noted(seen)).sharding_filter().zip(Noted(seen).sharding_filter())
    loader: DataLoader2[Any] = make_loader(graph, make_service(None, shards))
    with pytest.raises(OSError, match="disk full"), loader:
        stream = iter(loader)
        for _ in range(shards):
            next(stream)
    assert seen.names == ["closed"] * 3 * shards
