"""A graph whose workers cannot have finished before the test says so: for deaths in the midst of an epoch."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from reading_services import MultiProcessingReadingService
from tests.measured import measured
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper

__all__ = ["ITEMS", "held_loader", "run_with_a_death"]

ITEMS = 120


class Held:
    """Hands on numbers, from the 60th on only once ``flag`` is there."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __call__(self, number: int) -> int:
        time.sleep(0.001)  # so that what came before travels
        while number >= ITEMS // 2 and not self.flag.exists():
            time.sleep(0.002)
        return number


def held_loader(folder: Path) -> DataLoader2[int]:
    """Over 120 numbers, by two workers."""
    graph = IterableWrapper(range(ITEMS)).sharding_filter().map(Held(folder / "flag"))
    service = MultiProcessingReadingService(num_workers=2)
    return measured(DataLoader2(graph, reading_service=service))


def run_with_a_death(loader: DataLoader2[Any], folder: Path) -> None:
    """One epoch, in which worker 1 is killed."""
    stream = iter(loader)
    assert next(stream) == 0
    os.kill(loader.reading_service.worker_pids()[1], signal.SIGKILL)  # type: ignore[attr-defined]
    (folder / "flag").touch()
    assert list(stream) == list(range(1, ITEMS))
