"""L6: what a pass has opened in a worker or in the dispatcher is closed when it is given up, whatever that is at."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from reading_services._supervision import worker_pool
from tests.laws.executors import PROCESSES, make_loader, make_service
from tests.sources import wait_until
from torchpipe import DataLoader2
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


@pytest.mark.parametrize("dispatched", [False, True], ids=["worker", "dispatcher"])
@pytest.mark.parametrize("context", PROCESSES)
def test_L6_a_shutdown_in_mid_item_closes_what_was_opened(
    context: str, dispatched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the item takes on a loaded machine: who does not come back in a second is ended by SIGTERM
    monkeypatch.setattr(worker_pool, "stop_all", partial(worker_pool.stop_all, grace_s=60))
    source: Any = IterableWrapper(Opening(tmp_path), deepcopy=False)
    slow = Slow(tmp_path)
    graph = source.map(slow).sharding_round_robin_dispatch() if dispatched else source.sharding_filter().map(slow)
    loader: DataLoader2[Any] = make_loader(graph, make_service(2, 2, context=context))
    stream = iter(loader)
    assert next(stream) == 0
    wait_until(lambda: len(names(tmp_path, "at")) == (1 if dispatched else 2))
    loader.shutdown()
    assert names(tmp_path, "opened") == names(tmp_path, "closed")
