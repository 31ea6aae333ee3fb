"""``fullsync``: the ranks of a torch.distributed run end together. Runs in the main process of every rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from torchpipe.errors import RankError
from torchpipe.iter._shared.bases import OneInput
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_seconds

__all__ = ["FullSync"]

T = TypeVar("T")

_END: Any = object()
_FAILED, _ENDED, _GOES_ON = 0, 1, 2  # what a rank tells the others before each item; the least counts


class _SyncIterator(NodeIterator[T]):
    node: FullSync[T]

    def run(self) -> Iterator[T]:
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "Torch Distributed is required to be initialized to use `FullSync`: call "
                "torch.distributed.init_process_group(...) before you iterate"
            )
        if dist.get_world_size() == 1:
            yield from self.source.items()
            return
        with self._answered():
            group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self.node.timeout))
        try:
            yield from self._in_step(group)
        finally:
            dist.destroy_process_group(group)

    def _in_step(self, group: Any) -> Iterator[T]:
        while True:
            error: Exception | None = None
            held: list[Any] = []
            try:
                held.append(next(self.source.items(), _END))
            except Exception as raised:  # the others are to know
                error = raised
            mine = _FAILED if error is not None else _ENDED if held[0] is _END else _GOES_ON
            least = self._least(group, mine)
            if error is not None:
                raise error
            if least == _FAILED:
                raise RankError("the stream of another rank has failed, and all ranks end with it")
            if least == _ENDED:
                return
            yield held.pop()

    def _least(self, group: Any, mine: int) -> int:
        least = torch.tensor([mine], device="cpu")
        with self._answered():
            dist.all_reduce(least, op=dist.ReduceOp.MIN, group=group)
        return int(least)

    @contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankError(
                f"another rank has not answered within {self.node.timeout:g} s, or is gone: do all iterate in step?"
            ) from error


@functional_datapipe("fullsync")
class FullSync(OneInput[T]):
    """Hands its input on while every rank has an item: all end when the first has no more.

    For graphs that torch's ``DataLoader`` runs, or that are iterated themselves. A ``DataLoader2`` has
    ``DistributedReadingService``, which also divides the stream, and knows other endings. Before each item the ranks
    agree by one small all-reduce, in the thread that iterates, through a gloo group of this pass's own. All ranks
    iterate in step.

    State: none of its own. Raises: ValueError for a ``timeout`` (in seconds) that is not positive; while iterating,
    RuntimeError without an initialized process group, and RankError if another rank fails or does not answer in time.
    """

    iterator = _SyncIterator
    runs_in_main = True

    fingerprint_ignores = ("timeout",)

    def __init__(self, datapipe: IterDataPipe[T], timeout: float = 1800) -> None:
        super().__init__(datapipe)
        if not check_seconds("timeout", timeout) > 0:
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}")
        self.timeout = timeout
