"""The actor that hosts shards. Its working thread answers one call after the other; a second thread says how it goes.

What the driver asks of the working thread comes in the order in which it was asked. Work of a generation that is over
is answered with nothing, at once.

Dispatched items for the shards of an actor: asked for ahead, from the dispatcher's actor.

The actor that runs the dispatched part of the graph once, and hands its items to the shards that ask for them.
"""

from __future__ import annotations

import gc
import os
import pickle
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import ray
import torch
from ray.exceptions import RayError, RayTaskError

from reading_services.actors.replies import NOT_YET, ActorProgress, Begun, Hello, Packed, Portion, Produced, Status
from reading_services.engine.messages import Deal, StartDispatch, StartEpoch
from reading_services.hosting.dispatch import DispatchHost
from reading_services.hosting.shards import ShardHost, Supply, keep_sendable
from reading_services.hosting.supplies import EntrySupply, PrefetchingSupply, ShardQueue
from torchpipe.execution.shard import Chunk
from torchpipe.node.failures import add_note, dump_error, load_error
from torchpipe.randomness.global_random import own_random_states
from torchpipe.stats.sheet import AWAITING_CREDIT, AWAITING_INPUT, IDLE, MAKING, SENDING, STARTING

__all__ = ["CONTROL", "ActorBase", "ActorSupply", "DispatchActor", "ShardActor", "Superseded"]

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


_NOT_THERE = (
    "torchpipe: modules are imported by name where workers run, and it is not installed there. If it is of your "
    "project, let Ray copy the project's folder to the cluster: ray.init(runtime_env={'working_dir': '.'}) before the "
    "loader is made, or {'py_modules': ['path/of/the/module']}; if it is a package, runtime_env={'pip': [...]}"
)

CONTROL = "control"
"""The concurrency group of calls that are answered while others are at work."""


class ActorBase:
    """The base of both kinds of actors: two threads, notes of their progress, and generations that end."""

    def __init__(self, name: str, nodes: int) -> None:
        self._name, self._progress = name, ActorProgress(nodes)
        self._over = 0  # generations up to this one are over

    @ray.method(concurrency_group=CONTROL)
    def status(self, measures_nodes: bool, seen: int = -1) -> Status:
        """The actor's status; ``seen``: the item that it was at, as the driver knows."""
        self._progress.times.wanted = measures_nodes
        self._progress.times.publish()
        return self._progress.status(seen)

    @ray.method(concurrency_group=CONTROL)
    def supersede(self, generation: int) -> None:
        """Generations up to this one are over."""
        self._over = max(self._over, generation)

    def load(self, image: bytes, measures_nodes: bool) -> Hello:
        """Rebuild what is to run, in the thread that will run it."""
        own_random_states()
        torch.set_num_threads(1)
        self._progress.times.wanted = measures_nodes
        error = None
        try:
            self._take(*pickle.loads(image))
            gc.freeze()
        except Exception as raised:
            add_note(raised, f"torchpipe: in {self._where()}, which cannot go on")
            if isinstance(raised, ModuleNotFoundError):
                add_note(raised, _NOT_THERE)
            error = dump_error(raised)
        import torchpipe

        return Hello(
            pid=os.getpid(),
            node_id=ray.get_runtime_context().get_node_id(),
            host=socket.gethostname(),
            version=torchpipe.__version__,
            error=error,
        )

    def finish(self) -> None:
        """Close what is open, and end the process."""
        self._end()
        ray.actor.exit_actor()

    def _where(self) -> str:
        return f"{self._name} (pid {os.getpid()} on {socket.gethostname()})"

    def _take(self, *parts: Any) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError


class ShardActor(ActorBase):
    """Hosts shards: ``begin``, then ``produce`` for each chunk that the driver has room for."""

    _host: ShardHost

    def _take(self, graphs: Any, init_fn: Any, reset_fn: Any, policy: Any) -> None:
        self._host = ShardHost(graphs, init_fn, reset_fn, policy, self._progress, passing=(Superseded,))

    def begin(self, epoch: StartEpoch, dispatcher: Any) -> Begun | None:
        """End the epoch before, and start these shards."""
        if epoch.generation <= self._over:
            return None
        times = self._progress.times
        times.turn_to(STARTING)
        times.count_cpu()
        self._host.begin(epoch, self._supply_for(epoch, dispatcher))
        failed = []
        try:
            for start in epoch.shards:
                chunk = self._host.start(start)
                if chunk is not None:
                    failed.append(self._answer(epoch, start.lane, chunk))
        except Superseded:
            return None
        finally:
            self._progress.idle()
            times.turn_to(AWAITING_CREDIT)
        return Begun(failed=failed, reports=self._host.take_reports())

    def _supply_for(self, epoch: StartEpoch, dispatcher: Any) -> Supply | None:
        if epoch.from_entries:
            present = self._host.supply
            entries = present if epoch.keep and isinstance(present, EntrySupply) else EntrySupply()
            entries.keep(epoch.keep)
            return entries
        shards = [start.shard for start in epoch.shards if start.branch == epoch.dispatch_branch]
        if dispatcher is None or not shards:
            return None
        generation = epoch.generation
        return ActorSupply(
            dispatcher,
            generation,
            shards,
            epoch.window,
            superseded=lambda: generation <= self._over,
            waiting=self._progress.waiting,
        )

    def produce(self, generation: int, lane: int, limit: int, seconds: float, deal: Deal | None = None) -> Produced:
        """The next chunk of a lane; ``deal``: what it is to be made of, where that is dealt."""
        host, times = self._host, self._progress.times
        epoch = host.epoch
        nothing = Produced(generation=generation, lane=lane)
        if epoch is None or generation != epoch.generation or generation <= self._over:
            return nothing
        if isinstance(host.supply, EntrySupply):
            if deal is not None:
                host.supply.add(deal)
            limit = min(limit, host.supply.left(lane))
        if lane not in host.lanes or not limit:
            return nothing
        times.turn_to(MAKING)
        try:
            chunk = host.produce(lane, limit, seconds)
        except Superseded:
            self._progress.idle()
            return nothing
        finally:
            times.turn_to(SENDING)
        over = chunk.ended or chunk.error is not None
        answer = self._answer(epoch, lane, chunk)
        if over or answer.error is not None:
            host.retire(lane)
        times.turn_to(AWAITING_INPUT if epoch.from_entries else AWAITING_CREDIT)
        return answer

    def end(self, generation: int) -> None:
        """Close the shards of this generation."""
        if self._host.epoch is not None and self._host.epoch.generation == generation:
            self._end()

    def _end(self) -> None:
        self._host.end()
        self._progress.times.turn_to(IDLE)

    def _answer(self, epoch: StartEpoch, lane: int, chunk: Chunk) -> Produced:
        try:
            packed = Packed.of(chunk.items)
        except Exception as error:
            keep_sendable(chunk, error)
            packed = Packed.of(chunk.items)
        if chunk.error is not None:
            add_note(chunk.error, f"torchpipe: in {self._where()}")
        self._progress.times.count(len(chunk.items))
        over = chunk.ended or chunk.error is not None
        if over:
            self._progress.times.publish()
        return Produced(
            generation=epoch.generation,
            lane=lane,
            count=len(chunk.items),
            packed=packed,
            snapshot=chunk.snapshot,
            ended=chunk.ended,
            error=None if chunk.error is None else dump_error(chunk.error),
            reports=self._host.take_reports(),
            times=self._progress.times.read(),
            nodes=self._progress.figures() if over else (),
        )


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
