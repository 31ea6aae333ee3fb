"""The private names of torch that are used, each with its reason. Runs in every process."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._utils import ExceptionWrapper  # words the exceptions of workers: DataLoader raises them in the same words
from torch.utils.data._utils import worker
from torch.utils.data._utils.collate import (  # default_collate() with other functions for some types
    collate,
    collate_tensor_fn,
    default_collate_fn_map,
)
from torch.utils.data._utils.pin_memory import pin_memory  # the function behind DataLoader(pin_memory=True)

# The numbers that torch seeds numpy with in a worker: worker_seeding="torch" promises the same
from torch.utils.data._utils.worker import _generate_state as numpy_seed_of
from torch.utils.data.dataloader import _DatasetKind

__all__ = [
    "COMPILER",
    "COMPILER_FOLDER",
    "WITHOUT_OVERRIDES",
    "WORKER_GENERATORS",
    "ExceptionWrapper",
    "WorkerInfo",
    "collate",
    "collate_tensor_fn",
    "default_collate_fn_map",
    "gives_batches",
    "is_iterable",
    "numpy_seed_of",
    "pin_memory",
    "profiler_runs",
    "put_worker_info",
    "reads_whole",
    "reported_length",
    "unwrapped",
    "worker",
]

COMPILER = "torch._dynamo"
"""The module that torch.compile imports: where it is not imported, nothing has to be kept from being compiled."""

COMPILER_FOLDER = str(Path(torch.__file__).parent / "_dynamo") + "/"
"""Its frames stand between a user's compiled code and ours: a warning points beyond them."""

WITHOUT_OVERRIDES: Any = torch._C.DisableTorchFunctionSubclass
"""A tensor's own values, whatever its class overrides. torch's documentation names it, and has no public spelling."""

WorkerInfo: Any = worker.WorkerInfo
"""The class of objects that ``torch.utils.data.get_worker_info()`` returns: torch has no other way to make one."""


@dataclass(frozen=True, slots=True)
class _Generators:
    """Generators as in torch's ``_RNG``, for versions that have none."""

    random_generator: random.Random
    torch_generator: torch.Generator
    numpy_generator: np.random.Generator


WORKER_GENERATORS: Any = getattr(worker, "_RNG", _Generators)
"""``get_worker_info().rng`` of a thread that is a worker."""


def put_worker_info(info: Any) -> Any:
    """Let ``torch.utils.data.get_worker_info()`` return ``info`` in this process: what it returned before.

    User code that runs in our workers divides its data by it. torch sets it in its own workers alone.
    """
    before, worker._worker_info = worker._worker_info, info
    return before


def profiler_runs() -> bool:
    """True if the autograd profiler records: then a batch is marked as torch's loader marks it."""
    return torch._C._autograd._profiler_enabled()


# What torch's DataLoader and samplers note in themselves. Our DataLoader derives from torch's, and tools ask for these.


def is_iterable(loader: Any) -> bool:
    """True if torch has taken the dataset of ``loader``, one of its own, for an iterable one."""
    return bool(loader._dataset_kind == _DatasetKind.Iterable)


def gives_batches(loader: Any) -> bool:
    """True if the sampler of ``loader`` gives lists of indices."""
    return bool(loader._auto_collation)


def reported_length(loader: Any) -> int | None:
    """The length that ``len(loader)`` has said of an iterable dataset; None if nobody has asked."""
    length: int | None = vars(loader)["_IterableDataset_len_called"]
    return length


def unwrapped(dataset: Any) -> Any:
    """The node that torch's DataLoader has put into a wrapper."""
    return getattr(dataset, "_datapipe", dataset)


def reads_whole(sampler: Any) -> bool:
    """True if a RandomSampler gives each index once: its ``num_samples`` is computed where nothing is set."""
    return not sampler.replacement and sampler._num_samples is None
