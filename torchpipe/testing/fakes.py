"""A source and a device for tests.

- ``CountingSource``: a source that tells how much was pulled from it. Runs in the test's process.

A device in memory, for testing the device stage and what is built on it: it can fail, block and be slow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from torchpipe.device.tree import replace_tensors
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator

__all__ = ["CountingSource", "FakeBackend", "Pulls"]

T = TypeVar("T")


@dataclass(eq=False)
class Pulls:
    """The pulls from a :class:`CountingSource`, over all its passes."""

    total: int = 0
    open_passes: int = 0


class CountingSource(IterDataPipe[T]):
    """Yields the items of a sequence; its ``pulls`` count the items pulled and the passes that are not closed.

    Not thread-safe. State: one integer.
    """

    def __init__(self, items: Sequence[T]) -> None:
        self.items = items
        self.pulls = Pulls()

    def __len__(self) -> int:
        return len(self.items)

    def iterate(self, context: Context) -> NodeIterator[T]:
        return _CountingIterator(self, context)


class _CountingIterator(NodeIterator[T]):
    node: CountingSource[T]

    def __init__(self, node: CountingSource[T], context: Context) -> None:
        super().__init__(node, context)
        self.index = 0
        node.pulls.open_passes += 1

    def get_state(self) -> dict[str, Any]:
        return {"index": self.index}

    def set_state(self, state: dict[str, Any]) -> None:
        self.index = state["index"]

    def run(self) -> Iterator[T]:
        while self.index < len(self.node.items):
            self.index += 1
            self.node.pulls.total += 1
            yield self.node.items[self.index - 1]

    def close(self) -> None:
        if not self.pass_engine.is_closed:
            self.node.pulls.open_passes -= 1
        super().close()


class FakeBackend:
    """A :class:`~torchpipe.device.Backend` whose device is this process's memory: tensors arrive as copies.

    Instead of transfer number ``fail_at`` (from 0) ``error`` is raised; before number ``block_at`` ``blocked`` is set
    and ``gate`` waited for, at most 60 s; each transfer takes ``delay_s``. ``transferred`` and ``received`` list the
    batches that were moved and handed out, ``threads`` the threads that transferred, ``calls`` the steps by name.
    """

    name = "fake"
    releases_source = True

    def __init__(
        self,
        *,
        fail_at: int | None = None,
        error: BaseException | None = None,
        block_at: int | None = None,
        delay_s: float = 0.0,
    ) -> None:
        self.fail_at = fail_at
        self.error = error or RuntimeError("the fake device fails, as it was told to")
        self.block_at = block_at
        self.delay_s = delay_s
        self.gate = threading.Event()
        self.blocked = threading.Event()
        self._lock = threading.Lock()
        self._begun = 0
        self.transferred: list[Any] = []
        self.received: list[Any] = []
        self.threads: set[threading.Thread] = set()
        self.calls: list[str] = []

    def prepare(self) -> None:
        self.calls.append("prepare")

    def transfer(self, batch: Any, /) -> Any:
        with self._lock:
            number = self._begun
            self._begun += 1
            self.calls.append("transfer")
            self.threads.add(threading.current_thread())
        if number == self.block_at:
            self.blocked.set()
            self.gate.wait(60)
        if self.delay_s:
            time.sleep(self.delay_s)
        if number == self.fail_at:
            raise self.error
        with self._lock:
            self.transferred.append(batch)
        return replace_tensors(batch, _copies)

    def receive(self, moved: Any, /) -> Any:
        self.calls.append("receive")
        self.received.append(moved)
        return moved

    def sync(self) -> None:
        self.calls.append("sync")

    def wait(self) -> None:
        self.calls.append("wait")

    def close(self) -> None:
        self.calls.append("close")


def _copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in tensors]
