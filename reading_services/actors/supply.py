"""Dispatched items for the shards of an actor: asked for ahead, from the dispatcher's actor."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from reading_services.actors.replies import NOT_YET, Portion
from reading_services.hosting.prefetching import PrefetchingSupply, ShardQueue
from torchpipe.node.failures import load_error

__all__ = ["ActorSupply", "Superseded"]

_ASK_AGAIN_S = 0.02  # where the dispatcher has yet to begin
_LOOK_S = 0.2  # whether the items are still wanted


class Superseded(BaseException):
    """The items being produced are not wanted any more: no Exception, so that user code lets it pass."""


class ActorSupply(PrefetchingSupply):
    """The dispatched items of an actor's shards, in one generation, until ``superseded()``."""

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
        super().__init__(shards, window)
        self._ask_for_all()

    def check(self) -> None:
        """Raises: Superseded if these items are not wanted any more, or cannot come."""
        if self._cut_off or self._superseded():
            raise Superseded

    def _send(self, shard: int, items: int) -> Any:
        return self._dispatcher.take.remote(self._generation, shard, items)

    def _wait(self, queue: ShardQueue) -> None:
        """Wait for the answer to what was asked. The driver says what happens where the dispatcher has ended."""
        request = queue.request
        with self._waiting():
            while not ray.wait([request], timeout=_LOOK_S)[0]:
                self.check()
        queue.request = None
        try:
            answer = ray.get(request)
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
        error = None if answer.error is None else load_error(answer.error)
        self._arrived(queue, answer.packed.open(), sum(answer.packed.sizes), over=answer.over, error=error)

    def close(self) -> None:
        """Let go of what was asked. Idempotent."""
        self._shards.clear()
