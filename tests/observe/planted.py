"""Pipelines whose bottleneck is planted: what ``loader.stats()`` should say of each. Imported by worker processes."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from reading_services import MultiProcessingReadingService
from tests.measured import measured
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper
from torchpipe.observe.advice import advise
from torchpipe.testing.fakes import FakeBackend

__all__ = ["CASES", "SLOW_S", "Case", "foretold", "main", "run"]

SLOW_S = 0.04  # the planted step, for each item that is delivered
QUICK_S = 0.001  # what others take, and the loop


def slow(item: Any) -> Any:
    time.sleep(SLOW_S)
    return item


def quick(item: Any) -> Any:
    time.sleep(QUICK_S)
    return item


def batched(batch: list[Any]) -> list[Any]:
    time.sleep(SLOW_S)
    return batch


def slow_in_shard_1(item: int) -> int:
    time.sleep(SLOW_S if item % 2 else QUICK_S)
    return item


def many_objects(item: int) -> list[tuple[int, str]]:
    return MANY


MANY = [(number, str(number)) for number in range(20_000)]


def computing(item: Any) -> Any:
    until = time.thread_time() + SLOW_S / 4
    while time.thread_time() < until:
        pass
    return item


class SlowRows:
    """A sequence whose items take their time."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> int:
        return slow(index)  # type: ignore[no-any-return]


class SlowStream:
    """An iterable that every shard reads whole."""

    def __iter__(self) -> Iterator[int]:
        for number in range(1 << 20):
            yield quick(number)


class Numbers(Dataset[Any]):
    def __init__(self, step: Callable[[Any], Any] = quick) -> None:
        self.step = step

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(self.step(index))


class SlowSampler(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return (slow(index) for index in range(1 << 20))

    def __len__(self) -> int:
        return 1 << 20


def collated(samples: list[torch.Tensor]) -> torch.Tensor:
    time.sleep(SLOW_S)
    return torch.stack(samples)


def graph(node: Any, workers: int) -> Any:
    service = MultiProcessingReadingService(workers, "fork") if workers else None
    return measured(DataLoader2(node, reading_service=service))


def numbers() -> Any:
    return IterableWrapper(range(1 << 20))


@dataclass(frozen=True)
class Case:
    """``make(workers)`` is the loader; with two, ``bottleneck`` is in the node whose name begins with ``node``.

    ``step``: what the loop does with an item. ``scales``: does the number of workers decide how quick it is?
    """

    name: str
    make: Callable[[int], Any]
    bottleneck: str
    node: str | None = None
    step: Callable[[Any], Any] = quick
    scales: bool = False
    workers: int = 2


CASES = [
    Case("one map", lambda n: graph(numbers().sharding_filter().map(quick).map(slow).map(quick), n), "node",
         "Mapper(slow)", scales=True),
    Case("a computing map", lambda n: graph(numbers().sharding_filter().map(quick).map(computing), n), "node",
         "Mapper(computing)"),
    Case("collate", lambda n: graph(numbers().sharding_filter().map(quick).batch(4).collate(batched), n), "node",
         "Collator(batched)", scales=True),
    Case("a source by index", lambda n: graph(SequenceWrapper(SlowRows(), deepcopy=False).to_iter_datapipe()
         .sharding_filter().map(quick), n), "source", "MapToIterConverter", scales=True),
    Case("a source that all shards read", lambda n: graph(IterableWrapper(SlowStream(), deepcopy=False)
         .sharding_filter(), n), "source", "IterableWrapper", step=lambda item: item),
    Case("merge skew", lambda n: graph(numbers().sharding_filter().map(slow_in_shard_1), n), "merge"),
    Case("dispatcher", lambda n: graph(numbers().map(slow).sharding_round_robin_dispatch().map(quick), n), "dispatcher",
         "Mapper(slow)"),
    Case("device", lambda n: graph(numbers().sharding_filter().map(quick)
         .to_device(FakeBackend(delay_s=SLOW_S)), n), "device", "ToDevice"),
    Case("before the device", lambda n: graph(numbers().sharding_filter().map(slow).to_device("cpu"), n), "node",
         "Mapper(slow)"),
    Case("before a prefetch", lambda n: graph(numbers().sharding_filter().map(slow).prefetch(2), n), "node",
         "Mapper(slow)"),
    Case("after the device", lambda n: graph(numbers().sharding_filter().map(quick).to_device("cpu").map(slow), n),
         "main", "Mapper(slow)"),
    Case("transport", lambda n: graph(numbers().sharding_filter().map(many_objects), n), "transport",
         step=lambda item: item),
    Case("consumer", lambda n: graph(numbers().sharding_filter().map(quick), n), "consumer", step=slow),
    Case("in process", lambda n: graph(numbers().sharding_filter().map(quick).map(slow), n), "node", "Mapper(slow)",
         scales=True, workers=0),
    Case("dataset", lambda n: measured(DataLoader(Numbers(slow), None, num_workers=n)), "node", "Numbers",
         scales=True),
    Case("dataset in threads", lambda n: measured(
        DataLoader(Numbers(slow), None, num_workers=n, worker_method="thread")), "node", "Numbers", scales=True),
    Case("collate_fn", lambda n: measured(DataLoader(Numbers(), 4, num_workers=n, collate_fn=collated)), "node",
         "collated", scales=True),
    Case("sampler", lambda n: measured(DataLoader(Numbers(), None, sampler=SlowSampler(), num_workers=n)), "input",
         "SlowSampler"),
    Case("loop over a DataLoader", lambda n: measured(DataLoader(Numbers(), None, num_workers=n)), "consumer",
         step=slow),
]  # fmt: skip


def run(case: Case, workers: int, seconds: float) -> Any:
    """The figures after so long."""
    loader = case.make(workers)
    with loader:
        if isinstance(loader, DataLoader2):
            loader.seed(0)
        stream = iter(loader)
        case.step(next(stream))
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            case.step(next(stream))
        return loader.stats()


def foretold(case: Case, workers: int, seconds: float) -> float:
    """What was predicted for so many workers, as a part of what they then do."""
    advice = advise(replace(run(case, case.workers, seconds), others=None))  # who keep cores busy, and none of these
    rate = next(item.items_per_s for item in advice.predictions if item.workers == workers)
    return float(rate / run(case, workers, seconds).consumer.items_per_s)


def main() -> None:
    """Run all cases, and print what was said and how well it was foretold."""
    warnings.simplefilter("ignore")
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    for case in CASES:
        stats = run(case, case.workers, seconds)
        advice = stats.advice
        node = next((item.name for item in stats.nodes if item.number == advice.node), "")
        right = advice.bottleneck == case.bottleneck and node.startswith(case.node or "")
        ratios = [foretold(case, workers, seconds) for workers in (1, 4)] if case.scales else []
        print(
            f"{case.name:32} {'right' if right else 'WRONG':6} {advice.bottleneck:11} {node:28}",
            *(f"{ratio:.2f}" for ratio in ratios),
            flush=True,
        )


if __name__ == "__main__":
    main()
