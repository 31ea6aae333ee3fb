"""A batch is made of what the sampler said: samples are read, put together, and global random states are seeded for it.

Runs wherever batches are made: in the user's process, in workers, in threads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

from torch._utils import ExceptionWrapper
from torch.utils.data import default_collate
from torch.utils.data._utils import worker as torch_worker

from torchpipe.data import thread_info
from torchpipe.iter._collating import default_collate_in
from torchpipe.node.context import Memory
from torchpipe.node.failure import add_note

__all__ = ["Failure", "Fetch", "WorkerInitFn", "collating_in", "make_worker_info", "set_worker_info"]

WorkerInitFn: TypeAlias = Callable[[int], None]


class Fetch:
    """Makes a batch: ``fetch(indices)`` reads and collates. ``batched``: the sampler gives lists of indices."""

    def __init__(self, dataset: Any, batched: bool, collate_fn: Callable[[Any], Any]) -> None:
        self.dataset = dataset
        self.batched = batched
        self.collate_fn = collate_fn

    def __call__(self, indices: Any, collate_fn: Callable[[Any], Any] | None = None) -> Any:
        dataset = self.dataset
        if not self.batched:
            samples = dataset[indices]
        elif getattr(dataset, "__getitems__", None):
            samples = dataset.__getitems__(indices)
        else:
            samples = [dataset[index] for index in indices]
        return (collate_fn or self.collate_fn)(samples)

    def explain(self, error: BaseException, number: int, indices: Any) -> None:
        """Add a note to ``error``, which this batch's making has raised: which batch, and which indices it has."""
        add_note(error, f"torchpipe: raised while making batch {number}, of {_shown(indices, self.batched)}")


def _shown(indices: Any, batched: bool) -> str:
    text = repr(indices)
    if len(text) > 200:
        text = f"{text[:200]}..."
    return f"indices {text}" if batched else f"index {text}"


def collating_in(fn: Callable[[Any], Any], memory: Memory | None) -> Callable[[Any], Any]:
    """``fn``; torch's ``default_collate`` makes large tensors in ``memory``, from where they travel without a copy."""
    return default_collate_in(memory) if fn is default_collate else fn


class Failure:
    """Stands in the stream for a batch whose making has raised; the next batches follow all the same."""

    def __init__(self, wrapped: ExceptionWrapper, note: str) -> None:
        self._wrapped = wrapped
        self._note = note

    @classmethod
    def of(cls, error: BaseException, where: str, note: str) -> Failure:
        wrapped = ExceptionWrapper((type(error), error, error.__traceback__), where=where)  # type: ignore[no-untyped-call]
        return cls(wrapped, note)

    def rebuild(self) -> BaseException:
        """The exception as torch's loader raises it: of the same type, with the remote traceback as its text."""
        try:
            self._wrapped.reraise()  # type: ignore[no-untyped-call]
        except StopIteration as error:  # from next() it would end the loop in silence
            raised: BaseException = RuntimeError(str(error))
        except BaseException as error:
            raised = error
            raised.__traceback__ = None
        add_note(raised, self._note)
        return raised


def make_worker_info(worker: int, num_workers: int, seed: int, dataset: Any, **more: Any) -> Any:
    """torch's ``WorkerInfo``, as ``torch.utils.data.get_worker_info()`` returns it. ``more``: what newer torch has."""
    kind: Any = torch_worker.WorkerInfo
    more = {**thread_info.thread_fields(), **more}
    known = {item.name for item in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else more.keys()
    fitting = {name: value for name, value in more.items() if name in known}
    return kind(id=worker, num_workers=num_workers, seed=seed, dataset=dataset, **fitting)


def set_worker_info(info: Any) -> Any:
    """Let ``torch.utils.data.get_worker_info()`` return ``info`` in this process: what it returned before.

    In a worker thread: in that thread.
    """
    if thread_info.is_worker():
        return thread_info.put_info(info)
    before, torch_worker._worker_info = torch_worker._worker_info, info
    return before
