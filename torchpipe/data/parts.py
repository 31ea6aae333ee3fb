"""What workers are dealt under ``fetch="samples"``: some samples of a batch, a whole one, or one to be put together.

Runs in workers, processes or threads; the user's process makes and keeps these, and looks into none.

Samples that were made apart travel sealed, so that no object of the user's comes to life on the way: pickled, with
large tensors and arrays beside the pickle, which are then copied as bytes and no more.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any, TypeAlias

import numpy as np
import torch

from torchpipe.data.fetch import Fetch
from torchpipe.errors import NotSerializableError
from torchpipe.state.mapped import dump_with_buffers
from torchpipe.state.pickling import Reducers, dumps
from torchpipe.state.tensors import reduce_tensor

__all__ = ["Joining", "Part", "Samples", "Sealed", "Task", "make_part", "sealed"]

_OUT_OF_BAND_BYTES = 16 << 10  # a smaller buffer is quicker copied along


@dataclass(frozen=True, slots=True)
class Part:
    """Samples ``first`` to ``stop`` of the batch of ``indices``. All of them: the batch itself.

    ``key``: what the batch's random streams belong to.
    """

    key: int
    indices: list[Any]
    first: int
    stop: int

    @property
    def is_whole(self) -> bool:
        return self.stop - self.first == len(self.indices)


@dataclass(frozen=True, slots=True)
class Joining:
    """The batch of ``indices``, whose samples are in ``pieces``, in order."""

    key: int
    indices: list[Any]
    pieces: list[Samples | Sealed]


Task: TypeAlias = Part | Joining


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples that a part has given. ``took_ns``: to read them."""

    items: list[Any]
    took_ns: int

    def open(self) -> list[Any]:
        return self.items


@dataclass(frozen=True, slots=True)
class Sealed:
    """The same as bytes, for another process."""

    body: bytes
    buffers: list[Any]  # arrays of bytes
    took_ns: int

    def open(self) -> list[Any]:
        items: list[Any] = pickle.loads(self.body, buffers=self.buffers)
        return items


def make_part(
    task: Task, fetch: Fetch, collate_fn: Callable[[Any], Any] | None, seed: Callable[[int, int], None]
) -> Any:
    """The batch, or the :class:`Samples` of a part of one. ``seed(key, sample)`` puts a sample's states in place."""
    reseed = partial(seed, task.key)
    if isinstance(task, Joining):
        samples = [sample for piece in task.pieces for sample in piece.open()]
        reseed(len(task.indices))
        return fetch.collate(samples, collate_fn)
    if task.is_whole:
        return fetch(task.indices, collate_fn, reseed)
    began = perf_counter_ns()
    samples = fetch.read(task.indices[task.first : task.stop], reseed, task.first)
    return Samples(samples, perf_counter_ns() - began)


class _Pickler(pickle.Pickler):
    dispatch_table = Reducers({torch.Tensor: reduce_tensor})


def sealed(samples: Samples) -> Sealed:
    """Raises: NotSerializableError for what cannot leave its process."""
    try:
        body, buffers = dump_with_buffers(_Pickler, samples.items, _OUT_OF_BAND_BYTES, writable=True)
        return Sealed(bytes(body), [np.frombuffer(buffer, np.uint8) for buffer in buffers], samples.took_ns)
    except Exception:
        try:  # classes and functions made inside a function
            return Sealed(dumps(samples.items), [], samples.took_ns)
        except Exception as error:
            raise NotSerializableError(
                f"with fetch='samples', samples go from the worker that has made them to the one that puts their batch "
                f"together, and these cannot leave their process: {error}. Let the dataset return plain data, arrays "
                "or tensors, or leave out fetch='samples'"
            ) from error
