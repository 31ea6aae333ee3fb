"""Daemon threads iterate loaders of all kinds, epoch after epoch, when the main thread ends; one iterator is a global.

Says the process ids of what has been started, a line.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper


class Data(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((5000,), float(index))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (Data()[index] for index in range(12))


def graph() -> DataLoader2[Any]:
    items = IterableWrapper(range(12)).sharding_filter().map(Data().__getitem__)
    return DataLoader2(items.prefetch(2), reading_service=MultiProcessingReadingService(num_workers=1))


LOADERS: list[Any] = [
    DataLoader(Data(), 2, num_workers=2),
    DataLoader(Data(), 2, num_workers=1, persistent_workers=True),
    DataLoader(Data(), 2, num_workers=1, device="cpu"),
    DataLoader(Data(), 2, num_workers=2, worker_method="thread"),
    DataLoader(Stream(), 2, num_workers=1),
    DataLoader(Stream(), 2, num_workers=2, worker_method="thread"),
    graph(),
    DataLoader(Data(), 2),
    DataLoader(Stream(), 2),
]
stream = iter(DataLoader(range(10)))  # it is collected when modules are taken down


class Background(threading.Thread):
    """As prefetch_generator's, and the like."""

    def __init__(self, loader: Any) -> None:
        super().__init__(daemon=True)
        self.loader = loader
        self.queue: queue.Queue[Any] = queue.Queue(4)
        self.workers: set[int] = set()
        self.start()

    def run(self) -> None:
        while True:
            for item in self.loader:
                if isinstance(self.loader, DataLoader):
                    self.workers.update(self.loader.worker_pids())
                self.queue.put(item)


if __name__ == "__main__":
    list(stream)
    for loader in LOADERS:  # torch sets up an operator at its first call, and a fork meanwhile would leave it half done
        list(loader)
    ahead = [Background(loader) for loader in LOADERS]
    for _ in range(int(sys.argv[1])):
        for thread in ahead:
            thread.queue.get()
    print(os.getpid(), *(pid for thread in ahead for pid in tuple(thread.workers)), flush=True)
