"""What ``state_dict()`` costs where buffers are large: two shuffle buffers of 100 and of 1,000 items of 4 kB.

    python tools/state_cost.py

Prints the size of the payload and the median and the longest time of 20 calls. Under ``reading_services``, the state
holds the buffers of both shards.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.iter import IterableWrapper


def make(number: int) -> Any:
    return np.full(512, number, dtype=np.int64)


def same(item: Any) -> Any:
    return item


def measure(name: str, service: Any, buffer_size: int) -> None:
    graph = IterableWrapper(range(200_000)).sharding_filter().map(make).shuffle(buffer_size=buffer_size)
    with DataLoader2(graph.map(same).shuffle(buffer_size=buffer_size), reading_service=service) as loader:
        loader.seed(1)
        iterator = iter(loader)
        times: list[float] = []
        size = 0
        for number in range(3001):
            next(iterator)
            if number > 2200 and number % 40 == 0:
                began = time.perf_counter()
                size = len(loader.state_dict()["payload"])
                times.append(time.perf_counter() - began)
    milliseconds = f"median {statistics.median(times) * 1e3:.2f} ms, longest {max(times) * 1e3:.2f} ms"
    print(f"{name}, buffers of {buffer_size}: {size / 1e6:.1f} MB, {milliseconds}")


if __name__ == "__main__":
    for buffer_size in (100, 1000):
        measure("in process", InProcessReadingService(), buffer_size)
        measure("2 workers", MultiProcessingReadingService(2), buffer_size)
