"""A loop over each kind of loader that torch.compile was asked to compile. Says, of each, whether it went as usual."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
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
        return torch.full((4,), float(index)) + torch.rand(4)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (Data()[index] for index in range(12))


def graph(workers: int) -> Any:
    node = IterableWrapper(range(12)).shuffle().sharding_filter().map(Data().__getitem__)
    loader: Any = DataLoader2(node, reading_service=MultiProcessingReadingService(workers, num_shards=2))
    loader.seed(3)
    return loader


def shuffled(**options: Any) -> Any:
    return DataLoader(Data(), 2, shuffle=True, generator=torch.Generator().manual_seed(3), **options)


LOADERS: dict[str, Callable[[], Any]] = {
    "in process": shuffled,
    "workers": lambda: shuffled(num_workers=2),
    "threads": lambda: DataLoader(range(12), 2, num_workers=2, worker_method="thread"),  # type: ignore[arg-type]
    "device": lambda: shuffled(num_workers=1, device="cpu"),
    "iterable": lambda: DataLoader(Stream(), 2, generator=torch.Generator().manual_seed(3)),
    "graph": lambda: graph(0),
    "graph, workers": lambda: graph(2),
}


def epoch(loader: Any) -> torch.Tensor:
    total = torch.zeros(())
    for number, batch in enumerate(loader):
        total = total + (number + 1) * batch.sum()
    return total


def part(loader: Any) -> Any:
    stream = iter(loader)
    total = next(stream).sum() + 2 * next(stream).sum()
    return total, loader.state_dict()


def run(make: Callable[[], Any], epoch: Any, part: Any) -> list[torch.Tensor]:
    with make() as loader:
        totals = [epoch(loader), epoch(loader)]
        total, state = part(loader)
    with make() as loader:
        loader.load_state_dict(state)
        return [*totals, total, epoch(loader), epoch(loader)]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    expected = {name: run(make, epoch, part) for name, make in LOADERS.items()}
    compiled: Any = [torch.compile(function, backend="eager") for function in (epoch, part)]
    for name, make in LOADERS.items():
        found = run(make, *compiled)
        print(name, all(torch.equal(got, total) for got, total in zip(found, expected[name], strict=True)), sep=": ")
