"""An iterator that is left is left, without the collector, also after an exception: no frame that raises a failure has
it, so that neither the failure nor what its traceback leads to is part of a cycle.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset, WeightedRandomSampler

from reading_services import MultiProcessingReadingService
from tests.leaks import descendants
from tests.measured import measured
from tests.sources import wait_until
from torchpipe import DataLoader, DataLoader2, InProcessReadingService
from torchpipe.iter import IterableWrapper

BAD = 3


def bad(item: Any) -> Any:
    if item == BAD:
        raise ValueError(f"no item {item}")
    return item


class Numbers:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return int(bad(index))


class StopsAt(Numbers):
    def __getitem__(self, index: int) -> int:
        if index == BAD:
            raise StopIteration("no more")
        return index


class Lines(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return map(bad, range(8))


class Sampler:
    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        return map(bad, range(8))


def collated(items: Any) -> Any:
    return bad(items[0])


def begin(worker: int) -> None:
    raise ValueError(f"worker {worker} does not begin")


FORKED: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork"}
THREADS: dict[str, Any] = {"num_workers": 2, "worker_method": "thread"}
PERSISTENT: dict[str, Any] = FORKED | {"persistent_workers": True}


def source() -> Any:
    return IterableWrapper(range(8)).sharding_filter()


def processes() -> Any:
    return MultiProcessingReadingService(1, "fork")


LOADERS: dict[str, Callable[[], Any]] = {
    "in process": lambda: DataLoader(Numbers(), 1),
    "as torch": lambda: DataLoader(Numbers(), 1, worker_seeding="torch"),
    "StopIteration": lambda: DataLoader(StopsAt(), 1),
    "measured": lambda: measured(DataLoader(Numbers(), 1)),
    "collating": lambda: DataLoader(range(8), 1, collate_fn=collated),  # type: ignore[arg-type]
    "a sampler": lambda: DataLoader(range(8), 1, sampler=Sampler()),  # type: ignore[arg-type]
    "an iterable": lambda: DataLoader(Lines(), 1),
    "a device": lambda: DataLoader(Numbers(), 1, device="cpu"),
    "workers": lambda: DataLoader(Numbers(), 1, **FORKED),
    "workers that persist": lambda: DataLoader(Numbers(), 1, **PERSISTENT),
    "workers, out of order": lambda: DataLoader(Numbers(), 1, in_order=False, **FORKED),
    "workers and a sampler": lambda: DataLoader(range(8), 1, sampler=Sampler(), **FORKED),  # type: ignore[arg-type]
    "workers and an iterable": lambda: DataLoader(Lines(), 1, **FORKED),
    "workers and a device": lambda: DataLoader(Numbers(), 1, device="cpu", **FORKED),
    "workers by sample": lambda: DataLoader(Numbers(), 1, fetch="samples", **FORKED),
    "threads": lambda: DataLoader(Numbers(), 1, **THREADS),
    "threads and a sampler": lambda: DataLoader(range(8), 1, sampler=Sampler(), **THREADS),  # type: ignore[arg-type]
    "threads and an iterable": lambda: DataLoader(Lines(), 1, **THREADS),
    "threads by sample": lambda: DataLoader(Numbers(), 2, fetch="samples", **THREADS),
    "threads and a device": lambda: DataLoader(Numbers(), 1, device="cpu", **THREADS),
    "a graph": lambda: DataLoader2(source().map(bad)),
    "a graph of shards": lambda: DataLoader2(source().map(bad), reading_service=InProcessReadingService(num_shards=2)),
    "a graph, ahead": lambda: DataLoader2(source().map(bad).prefetch(2)),
    "a graph, mapped ahead": lambda: DataLoader2(source().parallel_map(bad)),
    "a graph, to a device": lambda: DataLoader2(source().map(bad).batch(1).collate().to_device("cpu")),
    "a graph, kept": lambda: DataLoader2(source().map(bad).cache()),
    "a graph, dispatched": lambda: DataLoader2(
        IterableWrapper(range(8)).map(bad).sharding_round_robin_dispatch(), reading_service=processes()
    ),
    "a graph, tried again": lambda: DataLoader2(source().map(bad).retry(2)),
    "a graph in workers": lambda: DataLoader2(source().map(bad), reading_service=processes()),
    "a graph in threads of workers": lambda: DataLoader2(source().map(bad).prefetch(2), reading_service=processes()),
    "threads that cannot begin": lambda: DataLoader(range(8), 1, worker_init_fn=begin, **THREADS),  # type: ignore[arg-type]
    "workers that cannot begin": lambda: DataLoader(range(8), 1, worker_init_fn=begin, **FORKED),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", LOADERS)
def test_an_iterator_that_has_raised_is_let_go_of(name: str) -> None:
    check_let_go_of(LOADERS[name], persists=name == "workers that persist")


def check_let_go_of(make: Callable[[], Any], *, persists: bool = False) -> None:
    before = descendants()
    gc.collect()
    gc.disable()
    try:
        loader = make()
        stream = iter(loader)
        with pytest.raises((ValueError, RuntimeError)):
            while True:
                next(stream)
        iterator = weakref.ref(stream)
        del stream
        assert iterator() is None
        assert loader.epoch == 1
        if not persists and isinstance(loader, DataLoader):
            wait_until(lambda: descendants() <= before)
        dropped = weakref.ref(loader)
        del loader
        assert dropped() is None
        wait_until(lambda: descendants() <= before)
    finally:
        gc.enable()


class Bad(Numbers):
    def __getitem__(self, index: int) -> int:
        raise ValueError(f"no item {index}")


class Fine(Numbers):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("options", [{}, FORKED, THREADS, {"device": "cpu"}])
def test_an_epoch_of_which_only_failures_came_has_been_an_epoch(options: dict[str, Any]) -> None:
    """The next one has an order of its own, as with torch's loader, whose sampler has drawn for the one that failed."""

    def weighted() -> WeightedRandomSampler:
        return WeightedRandomSampler([1.0] * 8, 8, generator=torch.Generator().manual_seed(31))

    loader: Any = DataLoader(Bad(), 1, sampler=weighted(), **options)
    torchs: Any = TorchLoader(Bad(), 1, sampler=weighted())
    for each in (loader, torchs):
        stream = iter(each)
        with pytest.raises(ValueError, match="no item"):
            next(stream)
        del stream
        each.dataset.__class__ = Fine
    assert loader.epoch == 1
    with loader:
        assert [int(batch) for batch in loader] == [int(batch) for batch in torchs]
