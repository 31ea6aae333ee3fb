"""A batch is made of what the sampler said: samples are read, put together, and global random states are seeded for it.

Runs wherever batches are made: in the user's process, in workers, in threads.

**The tasks of workers under** ``fetch="samples"``: some samples of a batch, a whole one, or one to be put together. The
user's process makes and keeps these, and looks into none. Where workers are processes, the samples of every batch are
sealed before they are put together, also those that do not travel: into how many parts a batch is cut follows from how
quick workers are, and what it holds may not. So a ``collate_fn`` is given copies, each sample pickled by itself.
Threads pass the samples on as they are.

No object of the user's comes to life on the way: large tensors and arrays lie beside the pickle, and are copied as
bytes and no more. Classes and functions go by their names alone: a copy of a class is another class.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import default_collate

from torchpipe.compat.torch_private import ExceptionWrapper, put_worker_info
from torchpipe.compat.torch_private import WorkerInfo as TorchWorkerInfo
from torchpipe.data import worker_info as thread_info
from torchpipe.errors import NotSerializableError, add_note
from torchpipe.iter._shared.batches import default_collate_in
from torchpipe.node.failures import dump_error, load_error, safe_str
from torchpipe.node.generator_seeding import SeededGenerators
from torchpipe.node.host import Memory
from torchpipe.node.iterator import is_stateful
from torchpipe.node.user_warnings import warn_user
from torchpipe.state.pickling import Reducers
from torchpipe.state.shared_list import dump_with_buffers
from torchpipe.state.tensors import reduce_tensor
from torchpipe.stats.sheet import ERRORS, NodeSheet, Sizing

__all__ = [
    "COLLATING",
    "READING",
    "BatchPart",
    "Failure",
    "Fetch",
    "Joining",
    "PartSamples",
    "Reseed",
    "Sealed",
    "Task",
    "TimedFetch",
    "WorkerInfo",
    "WorkerInitFn",
    "collating_in",
    "make_part",
    "make_worker_info",
    "read_infos",
    "set_worker_info",
]

WorkerInitFn: TypeAlias = Callable[[int], None]
Reseed: TypeAlias = Callable[[int], None]
"""Puts the random states of a sample of the batch in place, by its number; behind the last, those of collating."""


READING, COLLATING = 0, 1  # the steps of making a batch, by their numbers among a worker's nodes
_SLOW_NS = 20_000  # a sample that takes longer is timed by itself: that costs a third of a microsecond


class Fetch:
    """Makes a batch: ``fetch(indices)`` reads and collates. ``batched``: the sampler gives lists of indices.

    ``by_sample``: random states are seeded for each sample, by ``reseed``, so that samples of a batch may be made
    apart: those from ``first`` on by one ``read``, and what several have read put together by ``collate``.
    """

    def __init__(
        self, dataset: Any, batched: bool, collate_fn: Callable[[Any], Any], *, by_sample: bool = False
    ) -> None:
        self.dataset = dataset
        self.batched = batched
        self.collate_fn = collate_fn
        self.by_sample = by_sample

    def own_generators(self, warn: Callable[[str], None] | None = None) -> SeededGenerators | None:
        """The random generators that the dataset and the ``collate_fn`` hold now; None if the dataset has a state, and
        looks after them itself. ``warn`` is called with what cannot be seeded.
        """
        return None if is_stateful(self.dataset) else SeededGenerators(self.dataset, self.collate_fn, warn=warn)

    def warn_of_generators(self, why: str) -> None:
        """Warn of the random generators that are not seeded."""
        own = self.own_generators()
        if own is not None and (name := own.first()) is not None:
            warn_user(f"{name} is a random generator, and {why}")
        elif own is not None:
            self.own_generators(warn_user)

    def __call__(
        self, indices: Any, collate_fn: Callable[[Any], Any] | None = None, reseed: Reseed | None = None
    ) -> Any:
        samples = self.read(indices, reseed)
        if reseed is not None:
            reseed(len(indices))
        return self.collate(samples, collate_fn)

    def collate(self, samples: Any, collate_fn: Callable[[Any], Any] | None = None) -> Any:
        return (collate_fn or self.collate_fn)(samples)

    def read(self, indices: Any, reseed: Reseed | None = None, first: int = 0) -> Any:
        dataset = self.dataset
        if not self.batched:
            return dataset[indices]
        if getattr(dataset, "__getitems__", None):
            return dataset.__getitems__(indices)
        samples: list[Any] = []
        for number, index in enumerate(indices, first):
            if reseed is not None:
                reseed(number)
            try:
                samples.append(dataset[index])
            except Exception as error:
                _blame(error, index)
                raise
        return samples

    def explain(self, error: BaseException, number: int, indices: Any) -> None:
        """Add a note to ``error``, which this batch's making has raised: which batch, and which indices it has."""
        add_note(error, f"torchpipe: raised while making batch {number}, of {_shown(indices, self.batched)}")


class TimedFetch(Fetch):
    """The same, which notes what reading and collating take. For one thread."""

    def __init__(self, fetch: Fetch, sheet: NodeSheet) -> None:
        super().__init__(fetch.dataset, fetch.batched, fetch.collate_fn, by_sample=fetch.by_sample)
        self._sheet = sheet
        self._sizes = (Sizing(sheet, READING), Sizing(sheet, COLLATING))
        self._unseen = [1, 1]  # items, of reading and of collating, until one is looked at
        self._one_by_one = False  # True if samples are slow enough to be timed each by itself

    def collate(self, samples: Any, collate_fn: Callable[[Any], Any] | None = None) -> Any:
        began = perf_counter_ns()
        try:
            batch = super().collate(samples, collate_fn)
        except BaseException:
            self._sheet.count(COLLATING, ERRORS)
            raise
        self._sheet.note(COLLATING, perf_counter_ns() - began)
        self._size(COLLATING, batch, 1)
        return batch

    def read(self, indices: Any, reseed: Reseed | None = None, first: int = 0) -> Any:
        try:
            return self._read_each(indices, reseed, first) if self._one_by_one else self._read(indices, reseed, first)
        except BaseException:
            self._sheet.count(READING, ERRORS)
            raise

    def _read(self, indices: Any, reseed: Reseed | None, first: int) -> Any:
        began = perf_counter_ns()
        samples = super().read(indices, reseed, first)
        count = len(indices) if self.batched else 1
        took = perf_counter_ns() - began
        self._sheet.note(READING, took, max(1, count))
        self._one_by_one = took > _SLOW_NS * count and self.batched and not hasattr(self.dataset, "__getitems__")
        self._size(READING, samples, count)
        return samples

    def _read_each(self, indices: Any, reseed: Reseed | None, first: int) -> list[Any]:
        clock, note, dataset = perf_counter_ns, self._sheet.note, self.dataset
        samples = []
        for number, index in enumerate(indices, first):
            if reseed is not None:
                reseed(number)
            began = clock()
            try:
                samples.append(dataset[index])
            except Exception as error:
                _blame(error, index)
                raise
            note(READING, clock() - began)
            self._size(READING, samples, 1)
        return samples

    def _size(self, step: int, made: Any, items: int) -> None:
        """Look now and then at how large the last of what was made is; it is one of so many ``items``."""
        self._unseen[step] -= items
        if self._unseen[step] <= 0:
            last = made[-1] if step == READING and self.batched and isinstance(made, list) and made else made
            self._unseen[step] = self._sizes[step].look(last)


def _blame(error: BaseException, index: Any) -> None:
    """Add a note to ``error``, which reading this sample has raised."""
    add_note(error, f"torchpipe: raised by dataset[{_cut(repr(index))}]")


def _cut(text: str) -> str:
    return f"{text[:200]}..." if len(text) > 200 else text


def _shown(indices: Any, batched: bool) -> str:
    text = _cut(repr(indices))
    return f"indices {text}" if batched else f"index {text}"


def collating_in(fn: Callable[[Any], Any], memory: Memory | None) -> Callable[[Any], Any]:
    """``fn``; torch's ``default_collate`` makes large tensors in ``memory``, from where they travel without a copy."""
    return default_collate_in(memory) if fn is default_collate else fn


class Failure:
    """Stands in the stream for a batch whose making has raised; the next batches follow all the same.

    As with torch's loader, the exception is one of the same type whose text is the traceback ("Caught ValueError in
    DataLoader worker process 0. ..."). Where its class makes no such text (an ExceptionGroup, a ``__str__`` of its
    own), it is the exception itself; from another process, its cause is the remote traceback.
    """

    def __init__(self, error: BaseException, where: str, note: str) -> None:
        worded = _in_torchs_words(error, where)
        self._worded = worded is not None
        self.error: Any = error if worded is None else worded  # until it is raised
        add_note(self.error, note)

    def __reduce__(self) -> Any:
        return _received, (type(self), dump_error(self.error), self._worded)


def _in_torchs_words(error: BaseException, where: str) -> BaseException | None:
    """The error that torch's loader raises for it, if that has its type and its traceback."""
    wrapped = ExceptionWrapper((type(error), error, error.__traceback__), where=where)  # type: ignore[no-untyped-call]
    if isinstance(error, StopIteration):  # from next() it would end the loop in silence
        return RuntimeError(f"Caught {type(error).__name__} {where}.\nOriginal {wrapped.exc_msg}")
    try:
        wrapped.reraise()  # type: ignore[no-untyped-call]
    except (Exception, type(error)) as raised:
        raised.__traceback__ = None
        return raised if type(raised) is type(error) and wrapped.exc_msg in safe_str(raised) else None
    return None


def _received(kind: type[Failure], data: bytes, worded: bool) -> Failure:
    failure = kind.__new__(kind)
    failure.error, failure._worded = load_error(data), worded
    if worded:  # its text says all
        BaseException.__setattr__(failure.error, "__cause__", None)
    return failure


read_infos: set[int] = set()  # the workers whose ``WorkerInfo`` was read in this process


class WorkerInfo(TorchWorkerInfo):  # type: ignore[misc]
    """torch's, which notes in ``read_infos`` that it was read."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            read_infos.add(super().__getattribute__("id"))
        return super().__getattribute__(name)


def make_worker_info(worker: int, num_workers: int, seed: int, dataset: Any, **more: Any) -> Any:
    """A :class:`WorkerInfo`, as ``torch.utils.data.get_worker_info()`` returns it. ``more``: what newer torch has."""
    kind = WorkerInfo
    more = {**thread_info.thread_fields(), **more}
    fields = {item.name for item in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else more.keys()
    fitting = {name: value for name, value in more.items() if name in fields}
    return kind(id=worker, num_workers=num_workers, seed=seed, dataset=dataset, **fitting)


def set_worker_info(info: Any) -> Any:
    """Let ``torch.utils.data.get_worker_info()`` return ``info`` in this process: what it returned before.

    In a worker thread: in that thread.
    """
    if thread_info.is_worker():
        return thread_info.put_info(info)
    return put_worker_info(info)


_OUT_OF_BAND_BYTES = 16 << 10  # a smaller buffer is quicker copied along


@dataclass(frozen=True, slots=True)
class BatchPart:
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
    pieces: list[PartSamples | Sealed]


Task: TypeAlias = BatchPart | Joining


@dataclass(frozen=True, slots=True)
class PartSamples:
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
        samples = PartSamples(fetch.read(indices, reseed, task.first), perf_counter_ns() - began)
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


def _sealed(samples: PartSamples, indices: list[Any], *, stays: bool) -> Sealed:
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
