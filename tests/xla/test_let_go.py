"""What is dropped without ``close`` ends at once: neither threads nor shared memory wait for Python's collector."""

from __future__ import annotations

import contextlib
import gc
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from reading_services import MultiProcessingReadingService
from tests.sources import feed_threads, wait_until
from torchpipe import DataLoader2
from torchpipe.device.backend import CpuBackend
from torchpipe.execution.reading_service import InProcessReadingService
from torchpipe.iter import IterableWrapper
from torchpipe.xla.several_devices import SeveralDevices


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def numbers(length: int = 1000) -> Any:
    return IterableWrapper(range(length)).map(lambda number: torch.full((2,), float(number)))


def in_process(graph: Any, **options: Any) -> DataLoader2[Any]:
    return DataLoader2(graph, reading_service=InProcessReadingService(**options))


MADE: dict[str, Callable[[], Any]] = {
    "prefetch_cnt": lambda: in_process(numbers(), prefetch_cnt=2),
    "to_device": lambda: in_process(numbers().to_device(CpuBackend()), prefetch_cnt=2),
    "two queues": lambda: in_process(numbers().to_device(CpuBackend(), host_prefetch=2), prefetch_cnt=2),
    "node": lambda: numbers().to_device(CpuBackend()),
    "workers": lambda: DataLoader2(
        numbers().sharding_filter(), reading_service=MultiProcessingReadingService(1, "fork", device=CpuBackend())
    ),
}


@pytest.mark.parametrize("how", MADE)
@pytest.mark.parametrize("first", ["loader", "iterator"])
def test_L6_threads_end_when_loader_and_iterator_are_dropped(how: str, first: str) -> None:
    loader = MADE[how]()
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    assert feed_threads()
    kept = weakref.ref(iterator)
    if first == "loader":
        del loader
        assert next(iterator).tolist() == [3, 3]  # which lives on its iterator alone
        del iterator
    else:
        del iterator, loader
    assert kept() is None
    wait_until(lambda: feed_threads() == [])


def test_the_iterator_of_a_loader_that_is_dropped_ends_where_nothing_is_left() -> None:
    loader = in_process(numbers(4))
    loader.seed(1)
    list(zip(range(4), loader))  # the end has not been seen
    state = loader.state_dict()
    iterator = iter(DataLoader2.from_state(state, numbers(4)))
    assert list(iterator) == []
    assert (iterator.epoch, iterator.delivered, iterator.finished) == (0, 4, True)


def test_L6_several_devices_end_their_threads() -> None:
    streams = SeveralDevices(DataLoader2(numbers()), [CpuBackend(), CpuBackend()]).epoch()
    for stream in streams:
        next(stream)
    assert feed_threads()
    del stream, streams
    wait_until(lambda: feed_threads() == [])


def arena_bytes() -> int:
    """What memory the arenas of this process take, each counted once."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            if "torchpipe-arena" in os.readlink(f"/proc/self/fd/{name}"):
                status = os.stat(f"/proc/self/fd/{name}")
                found[status.st_ino] = 512 * status.st_blocks
    return sum(found.values())


def test_L5_leaving_epochs_by_break_does_not_let_shared_memory_grow() -> None:
    """An interrupted pass was kept by the traceback of its own interruption, and with it the items it had."""
    graph = IterableWrapper(range(1000)).sharding_filter().map(lambda number: torch.full((128, 1024), float(number)))
    passes: list[weakref.ref[Any]] = []
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(1, "fork", device=CpuBackend())) as loader:
        for _ in range(40):
            for batch in loader:
                assert batch.shape == (128, 1024)
                break
            del batch
            work: Any = loader._pass
            passes.append(weakref.ref(work.stream.source))
            del work
        assert [number for number, kept in enumerate(passes[:-1]) if kept() is not None] == []
        assert arena_bytes() <= 48 << 20  # twice what may be under way, 8 MiB, and then rounded up
