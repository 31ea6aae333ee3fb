"""Dispatched items for the shards of an actor: asked for ahead, from the dispatcher's actor."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from reading_services.actors.replies import NOT_YET, Portion
from reading_services.hosting.shards import Supply
from torchpipe.execution.dispatch import Entry
from torchpipe.node.failures.remote_error import load_error

__all__ = ["ActorSupply", "Superseded"]

_ASK_AGAIN_S = 0.02  # where the dispatcher has yet to begin
_LOOK_S = 0.2  # whether the items are still wanted
_WISH_BYTES = 1 << 20  # of small items, more are asked for at a time than the window says: up to so many bytes


class Superseded(BaseException):
    """What is being produced is not wanted any more: no Exception, so that user code lets it pass."""


class _Asked:
    """What a shard has of its dispatched items."""

    def __init__(self, window: int) -> None:
        self.ready: deque[Entry] = deque()
        self.items = 0  # of them
        self.window = window  # that it wants to have
        self.asked: Any = None  # the call that is on its way
        self.over = False
        self.error: BaseException | None = None


class ActorSupply(Supply):
    """The dispatched items of an actor's shards, in one generation, until ``superseded()``.

    Of each shard, ``window`` items are asked for ahead; if these turn out to be small and quickly used, more.
    """

    def __init__(
        self,
        dispatcher: Any,
        generation: int,
        shards: list[int],
        window: int,
        superseded: Callable[[], bool],
        waiting: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._dispatcher, self._generation = dispatcher, generation
        self._superseded, self._waiting = superseded, waiting
        self._cut_off = False
        self._item_bytes = _WISH_BYTES
        self._shards = {shard: _Asked(window) for shard in shards}
        for shard in shards:
            self._ask(shard)

    def check(self) -> None:
        """Raises: Superseded if these items are not wanted any more, or cannot come."""
        if self._cut_off or self._superseded():
            raise Superseded

    def take(self, shard: int) -> Entry | None:
        self.check()
        mine = self._shards[shard]
        if not mine.items and not mine.over and 2 * mine.window * self._item_bytes <= _WISH_BYTES:
            mine.window *= 2  # the shard has to wait, and its items are small
        while not mine.ready:
            if mine.error is not None:
                raise mine.error
            if mine.over:
                return None
            self._ask(shard)
            self._receive(mine)
        entry = mine.ready.popleft()
        if isinstance(entry, tuple):
            mine.items -= 1
            if 2 * mine.items <= mine.window:
                self._ask(shard)
        return entry

    def _ask(self, shard: int) -> None:
        mine = self._shards[shard]
        if mine.asked is None and not mine.over:
            wanted = max(1, mine.window - mine.items)
            mine.asked = self._dispatcher.take.remote(self._generation, shard, wanted)

    def _receive(self, mine: _Asked) -> None:
        """Wait for the answer to what was asked. The driver says what happens where the dispatcher has ended."""
        asked = mine.asked
        with self._waiting():
            while not ray.wait([asked], timeout=_LOOK_S)[0]:
                self.check()
        mine.asked = None
        try:
            answer = ray.get(asked)
        except RayTaskError:
            raise
        except RayError:  # the dispatcher has ended
            answer = None
        if answer == NOT_YET:
            with self._waiting():
                time.sleep(_ASK_AGAIN_S)
            self.check()
            return
        if answer is None:  # it has another generation, or has ended
            self._cut_off = True
            self.check()
        assert isinstance(answer, Portion)
        entries = answer.packed.open()
        mine.ready.extend(entries)
        mine.items += sum(isinstance(entry, tuple) for entry in entries)
        mine.over, mine.error = answer.over, None if answer.error is None else load_error(answer.error)
        self._item_bytes = sum(answer.packed.sizes) // max(1, len(entries)) + 1

    def close(self) -> None:
        """Let go of what was asked. Idempotent."""
        self._shards.clear()
