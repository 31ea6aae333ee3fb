"""Wrong arguments of ``torchpipe.DataLoader``. What torch refuses as well is in tests/data/test_bad_input.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from tests.data.datasets import Lines, Numbers
from tests.wrong_arguments.rows import Row, calls
from torchpipe import DataLoader
from torchpipe.data import Ranks
from torchpipe.device import DeviceOptions

__all__ = ["ROWS"]


class Counting(Numbers):
    """A dataset with a state of its own."""

    def state_dict(self) -> Any:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


class Streaming(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(3)


def loader(dataset: Any = None, **options: Any) -> Any:
    return DataLoader(Numbers(9) if dataset is None else dataset, **options)


def of_ranks(**options: Any) -> Any:
    return loader(**{"distributed": True, **options})


def of_threads(**options: Any) -> Any:
    return loader(**{"num_workers": 1, "worker_method": "thread", **options})


ROWS: list[Row] = [
    *calls(
        "DataLoader",
        loader,
        ({"timeout": 5}, ValueError, "timeout"),
        ({"prefetch_factor": 0, "num_workers": 1}, ValueError, "prefetch_factor"),
        ({"num_workers": 10_000}, ValueError, "num_workers"),
        ({"worker_seeding": "epoch"}, ValueError, "worker_seeding"),
        ({"worker_method": "threads", "num_workers": 1}, ValueError, "worker_method"),
        ({"on_worker_death": "ignore"}, ValueError, "on_worker_death"),
        ({"device": DeviceOptions("cpu", device_prefetch=0)}, ValueError, "device_prefetch"),
        ({"device": DeviceOptions("cpu", on_new_shape="drop")}, ValueError, "on_new_shape"),
        ({"last_batch": "roll"}, ValueError, "last_batch"),
        ({"last_batch": "rollover", "drop_last": True}, ValueError, "drop_last"),
        ({"last_batch": "keep", "batch_sampler": [[1]]}, ValueError, "batch_sampler"),
        ({"last_batch": "rollover", "batch_sampler": [[1]]}, ValueError, "batch_sampler"),
        ({"last_batch": "rollover", "batch_size": None}, ValueError, "batch_size"),
        ({"last_batch": "rollover", "batch_size": 0}, ValueError, "batch_size"),
        ({"last_batch": "rollover", "shuffle": True, "sampler": [1]}, ValueError, "sampler"),
        ({"last_batch": "rollover", "dataset": Lines(9)}, ValueError, "last_batch"),
    ),
    *calls(
        "DataLoader of ranks",
        of_ranks,
        ({"sampler": range(3)}, ValueError, "sampler"),
        ({"batch_sampler": [[1]], "batch_size": 1}, ValueError, "batch_sampler"),
        ({"dataset": Streaming()}, ValueError, "distributed"),
        ({"dataset": Counting(9)}, ValueError, "dataset"),
        ({"in_order": False}, ValueError, "in_order"),
        ({"worker_seeding": "torch"}, ValueError, "worker_seeding"),
        ({"last_batch": "rollover"}, ValueError, "last_batch"),
        ({}, RuntimeError, "distributed"),
    ),
    *calls("Ranks", Ranks, ({"uneven": "stop"}, ValueError, "uneven"), ({"balance": [1, 2]}, TypeError, "balance")),
    *calls(
        "DataLoader of threads",
        of_threads,
        ({"worker_seeding": "torch"}, ValueError, "worker_seeding"),
        ({"multiprocessing_context": "fork"}, ValueError, "multiprocessing_context"),
    ),
]
