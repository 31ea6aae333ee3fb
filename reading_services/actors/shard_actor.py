"""The actor that hosts shards. Its working thread answers one call after the other; a second thread says how it goes.

What the driver asks of the working thread comes in the order in which it was asked. Work of a generation that is over
is answered with nothing, at once.
"""

from __future__ import annotations

import gc
import os
import pickle
import socket
from typing import Any

import ray
import torch

from reading_services.actors.progress import ActorProgress
from reading_services.actors.replies import Begun, Hello, Packed, Produced, Status
from reading_services.actors.supply import ActorSupply, Superseded
from reading_services.engine.messages import Deal, StartEpoch
from reading_services.hosting.entries import EntrySupply
from reading_services.hosting.shards import ShardHost, Supply, keep_sendable
from torchpipe.execution.shard import Chunk
from torchpipe.node.failures import add_note, dump_error
from torchpipe.randomness.global_random import own_random_states
from torchpipe.stats.sheet import AWAITING_CREDIT, AWAITING_INPUT, IDLE, MAKING, SENDING, STARTING

__all__ = ["CONTROL", "ActorBase", "ShardActor"]

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
