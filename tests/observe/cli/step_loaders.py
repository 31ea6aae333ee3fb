"""Loaders whose steps are looked up, and what one rank of a run of theirs does: ``python -m`` with rank, ranks, folder.

Functions draw from every random state and change their argument.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Dataset, DistributedSampler, get_worker_info

from reading_services import DistributedReadingService, MultiProcessingReadingService, SequentialReadingService
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper

STATE_AT, STEPS = 4, 8


def draws() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def augment(sample: dict[str, Any]) -> dict[str, Any]:
    sample["drawn"] = draws()
    return sample


def jitter(sample: dict[str, Any], generator: Any) -> dict[str, Any]:
    sample["jitter"] = generator.random() + random.random()
    return sample


class Images(Dataset[Any]):
    """Says which worker has made a sample, and draws."""

    def __init__(self) -> None:
        self._read: list[int] = []

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Any:
        self._read.append(index)
        info = get_worker_info()
        return torch.tensor([index, -1 if info is None else info.id]), torch.tensor(draws())


def samples() -> Any:
    return IterableWrapper([{"id": f"sample {number}", "url": "u"} for number in range(400)])


def service(**options: Any) -> Any:
    return SequentialReadingService(DistributedReadingService(**options), MultiProcessingReadingService(2))


def graph(rank: int, world_size: int) -> Any:
    nodes = samples().shuffle(buffer_size=50).sharding_filter().map(augment).random_map(jitter).batch(3)
    loader = DataLoader2(nodes, reading_service=service())
    loader.seed(5)
    return loader


def filtered(rank: int, world_size: int) -> Any:
    nodes = samples().sharding_filter().map(augment).filter(lambda sample: random.random() < 0.7).batch(3)
    loader = DataLoader2(nodes, reading_service=service(total_shards=4))
    loader.seed(6)
    return loader


def dealt(rank: int, world_size: int) -> Any:
    return DataLoader(Images(), 4, shuffle=True, distributed=True, num_workers=2)


def sampled(rank: int, world_size: int) -> Any:
    data = Images()
    return DataLoader(data, 4, sampler=DistributedSampler(data, world_size, rank, seed=3), num_workers=2)


class Scaled(Images):
    """Is changed by the ``worker_init_fn`` of its worker."""

    scale = 1

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return index * self.scale, -1 if info is None else info.id


def scale(worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.scale = 100


def counted(num_workers: int = 2) -> Any:
    return DataLoader(Scaled(), 2, num_workers=num_workers, collate_fn=list, worker_init_fn=scale)


def of_epoch(epoch: int) -> Any:
    return counted()


NAMES = ("graph", "filtered", "dealt", "sampled")


def run(rank: int, world_size: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    torch.manual_seed(11 + rank)
    for name in NAMES:
        taken, state = [], None
        with globals()[name](rank, world_size) as loader:
            for batch in loader:
                taken.append(batch)
                if len(taken) == STATE_AT:
                    state = loader.state_dict()
                if len(taken) == STEPS:
                    break
        torch.save({"taken": taken}, folder / f"{name}.{rank}.taken")
        torch.save({"loader": state}, folder / f"{name}.{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
