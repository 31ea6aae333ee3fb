"""The actor that runs the dispatched part of the graph once, and hands its items to the shards that ask for them."""

from __future__ import annotations

from typing import Any

import ray

from reading_services.actors.replies import NOT_YET, Begun, Packed, Portion
from reading_services.actors.shard_actor import CONTROL, ActorBase
from reading_services.engine.messages import StartDispatch
from reading_services.hosting.dispatch import DispatchHost
from torchpipe.node.failures import dump_error
from torchpipe.stats.sheet import AWAITING_CREDIT, IDLE, MAKING, SENDING, STARTING

__all__ = ["DispatchActor"]

_ANNOUNCED = 1000  # items after a restart that may be the last one: what has ended it is most likely among them


class DispatchActor(ActorBase):
    """``begin``, then ``take`` for each shard that has room."""

    _host: DispatchHost | None = None  # until it is loaded
    _begun = 0  # this generation

    def _take(self, graph: Any, policy: Any) -> None:
        self._host = DispatchHost(graph, policy, self._progress, f"torchpipe: in {self._where()}")

    def begin(self, epoch: StartDispatch) -> Begun | None:
        """End the epoch before, and bring the source to its mark."""
        if epoch.generation <= self._over:
            return None
        host, times = self._host, self._progress.times
        assert host is not None
        times.turn_to(STARTING)
        times.count_cpu()
        self._begun = epoch.generation
        self._progress.announce_items(
            _ANNOUNCED if epoch.isolate_items else max(0, epoch.isolate_before - epoch.mark.count)
        )
        host.begin(epoch)
        self._progress.report(host.take_reports())
        times.turn_to(AWAITING_CREDIT)
        return Begun()

    @ray.method(concurrency_group=CONTROL)
    def supersede(self, generation: int) -> None:
        super().supersede(generation)
        if generation >= self._begun:
            self._progress.announce_items(0)  # nobody listens any more

    def take(self, generation: int, shard: int, items: int) -> Portion | str | None:
        """Up to so many items for a shard, one at least; None if this generation is over."""
        host, times = self._host, self._progress.times
        if generation <= self._over:
            return None
        if host is None or host.epoch is None or host.epoch.generation < generation:
            return NOT_YET
        if host.epoch.generation > generation:
            return None
        times.turn_to(MAKING)
        while not host.has(shard):
            if generation <= self._over:
                return None
            times.count(host.produce())
            self._progress.report(host.take_reports())
        times.turn_to(SENDING)
        portion = host.take(shard, items)
        try:
            packed = Packed.of(portion.entries)
        except Exception as error:
            host.keep_sendable(portion, shard, error)
            packed = Packed.of(portion.entries)
        times.send(sum(packed.sizes))
        times.turn_to(AWAITING_CREDIT)
        return Portion(
            packed=packed, over=portion.over, error=None if portion.error is None else dump_error(portion.error)
        )

    def end(self, generation: int) -> None:
        """Close the source of this generation."""
        host = self._host
        if host is not None and host.epoch is not None and host.epoch.generation == generation:
            self._end()

    def _end(self) -> None:
        if self._host is not None:
            self._host.end()
        self._progress.times.turn_to(IDLE)
