"""The tasks of workers under ``fetch="samples"``: some samples of a batch, a whole one, or one to be put together.

Runs in workers, processes or threads; the user's process makes and keeps these, and looks into none.

Where workers are processes, the samples of every batch are sealed before they are put together, also those that do
not travel: into how many parts a batch is cut follows from how quick workers are, and what it holds may not. So a
``collate_fn`` is given copies, each sample pickled by itself. Threads pass the samples on as they are.

No object of the user's comes to life on the way: large tensors and arrays lie beside the pickle, and are copied as
bytes and no more. Classes and functions go by their names alone: a copy of a class is another class.
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
from torchpipe.state.pickling import Reducers
from torchpipe.state.tensors import reduce_tensor

__all__ = ["Joining", "Part", "Samples", "Sealed", "Task", "make_part"]

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
    """The same as bytes, of which copies are made. ``sealed``: of each sample, its pickle and arrays of bytes."""

    sealed: list[tuple[bytes, list[Any]]]
    took_ns: int

    def open(self) -> list[Any]:
        return [pickle.loads(body, buffers=buffers) for body, buffers in self.sealed]


def make_part(
    task: Task,
    fetch: Fetch,
    collate_fn: Callable[[Any], Any] | None,
    seed: Callable[[int, int], None],
    *,
    copies: bool = False,
) -> Any:
    """The batch, or the samples of a part of one. ``seed(key, sample)`` puts a sample's states in place.

    ``copies``: put together copies of the samples. Raises: NotSerializableError for samples that cannot be pickled.
    """
    reseed = partial(seed, task.key)
    if isinstance(task, Joining):
        pieces = task.pieces
    else:
        began = perf_counter_ns()
        indices = task.indices[task.first : task.stop]
        samples = Samples(fetch.read(indices, reseed, task.first), perf_counter_ns() - began)
        piece = _sealed(samples, indices, stays=task.is_whole) if copies else samples
        if not task.is_whole:
            return piece
        pieces = [piece]
        del samples
    opened = [sample for piece in pieces for sample in piece.open()]
    reseed(len(task.indices))
    return fetch.collate(opened, collate_fn)


class _Pickler(pickle.Pickler):
    dispatch_table = Reducers({torch.Tensor: reduce_tensor})


def _sealed(samples: Samples, indices: list[Any], *, stays: bool) -> Sealed:
    """``stays``: it is opened here, so nothing else copies what lies beside the pickles."""
    sealed = []
    for sample, index in zip(samples.items, indices, strict=True):
        try:
            body, buffers = dump_with_buffers(_Pickler, sample, _OUT_OF_BAND_BYTES, writable=True)
        except Exception as error:
            raise NotSerializableError(
                f"with fetch='samples', samples go from the worker that has made them to the one that puts their batch "
                f"together, and dataset[{index!r:.200}] cannot be pickled: {error}. Let the dataset return plain data, "
                "arrays, tensors, or instances of classes at the top level of a module, or use fetch='batches'"
            ) from error
        arrays = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
        sealed.append((bytes(body), [array.copy() for array in arrays] if stays else arrays))
    return Sealed(sealed, samples.took_ns)
