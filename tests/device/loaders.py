"""Loaders for tests of what wraps a loader: with state, without, failing, blocking; they tell what was read."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["Plain", "Saved", "batch", "index_of", "indices"]


def batch(index: int) -> dict[str, Any]:
    return {"x": torch.full((2,), float(index)), "index": index}


def index_of(item: Any) -> int:
    return int(item["index"])


def indices(items: Any) -> list[int]:
    return [index_of(item) for item in items]


class Plain:
    """``length`` batches an epoch, 1000 * epoch + index; no state. Raises ``error`` at ``fail_at``, once."""

    def __init__(
        self,
        length: int,
        *,
        fail_at: int | None = None,
        error: BaseException | None = None,
        block_at: int | None = None,
    ) -> None:
        self.length = length
        self.fail_at = fail_at
        self.error = error or OSError("planted")
        self.block_at = block_at
        self.gate = threading.Event()
        self.blocked = threading.Event()
        self.epochs = 0
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        epoch, self.epochs = self.epochs, self.epochs + 1
        return self._run(epoch)

    def _run(self, epoch: int) -> Iterator[Any]:
        for index in range(self.length):
            if index == self.block_at:
                self.blocked.set()
                self.gate.wait(60)
            if index == self.fail_at:
                self.fail_at = None
                raise type(self.error)(*self.error.args)  # a new one: its traceback leads to this loader
            self.read.append(index)
            yield batch(1000 * epoch + index)


class Saved(Plain):
    """The same, with state: its order is shuffled anew for each epoch, and its position is exact at any time."""

    epoch = -1
    position = 0
    loaded = False

    def __iter__(self) -> Iterator[Any]:
        if not self.loaded:
            self.epoch, self.position = self.epoch + 1, 0
        self.loaded = False
        return self._from(self.epoch)

    def order(self, epoch: int) -> list[int]:
        return random.Random(epoch).sample([1000 * epoch + index for index in range(self.length)], self.length)

    def _from(self, epoch: int) -> Iterator[Any]:
        order = self.order(epoch)
        while self.position < self.length:
            if self.position == self.block_at:
                self.blocked.set()
                self.gate.wait(60)
            if self.position == self.fail_at:
                self.fail_at = None
                raise type(self.error)(*self.error.args)  # a new one: its traceback leads to this loader
            self.read.append(self.position)
            self.position += 1
            yield batch(order[self.position - 1])

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]
        self.loaded = self.epoch >= 0
