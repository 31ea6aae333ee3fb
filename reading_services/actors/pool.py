"""Workers that are Ray actors, and the one wait for all that can happen to them.

Runs in the driver, which owns the actors: they end with it. Ray calls back, in a thread of its own, when a call has
its answer; the callback does nothing but wake the wait. The wait ends with an answer, with :meth:`ActorPool.wake`, or
after the timeout. Now and then it asks each actor how it is, and the cluster whether nodes are about to go.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from concurrent.futures import Future
from contextlib import ExitStack
from functools import cache, partial
from queue import Empty, SimpleQueue
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from reading_services.actors.cluster import ActorRequest
from reading_services.actors.replies import Hello
from reading_services.actors.shard_actor import CONTROL, DispatchActor, ShardActor
from reading_services.actors.worker import ActorWorker
from reading_services.engine.workers import (
    DISPATCHER,
    End,
    Event,
    Gone,
    Late,
    Leaving,
    NoRoomHere,
    Section,
    Worker,
    WorkerPool,
)
from torchpipe.compat.ray_private import draining_nodes, has_process

__all__ = ["ActorPool"]

_log = logging.getLogger("torchpipe")

_LOOK_S = 1.0  # after actors and nodes
_PLACEMENT_S = 2.0  # for an actor to get its process on the node that it was put on
_FINISH_S = 3.0  # for an actor to close what it has open


class ActorPool(WorkerPool):
    """``close`` ends all actors; those of a forgotten object end with it, and all of them with the driver.

    ``silent_s``: after how long without an answer to "how are you" one is killed (None: never). ``start_timeout_s``:
    how long an actor may take to be placed and to start, before it is late.
    """

    method = "ray"

    def __init__(
        self,
        shards: Section,
        dispatched: Section | None,
        request: ActorRequest,
        *,
        silent_s: float | None = None,
        start_timeout_s: float = 120.0,
    ) -> None:
        self._sections = {False: shards, True: dispatched}
        self._request, self._silent_s = request, silent_s
        self._start_timeout_s = start_timeout_s
        self._lock = threading.RLock()
        self._images: dict[bool, Any] = {}
        self._workers: list[ActorWorker] = []
        self._leaving: list[tuple[ActorWorker, Any, float]] = []  # asked to finish, until when
        self._answers: SimpleQueue[int | None] = SimpleQueue()
        self._without_room: set[int] = set()  # the numbers of those that this node has no room for
        self._measures_nodes = self._closed = False
        self._looked_at = time.monotonic()
        # An object that is forgotten ends its actors at once; at exit, Ray does
        weakref.finalize(self, _kill_all, os.getpid(), self._workers).atexit = False

    def processes(self) -> list[Hello]:
        """The processes and nodes of the actors that have started, in the order of their numbers."""
        return [worker.hello for worker in self._in_order() if worker.hello is not None]

    def nodes(self) -> dict[str, str]:
        """The name of each actor -> the id of its node."""
        return {worker.name: worker.hello.node_id for worker in self._in_order() if worker.hello is not None}

    def actors(self) -> list[Any]:
        """The handles of the actors, in the order of their numbers."""
        return [worker.actor for worker in self._in_order()]

    def _in_order(self) -> list[ActorWorker]:
        return sorted(self._workers, key=lambda worker: worker.number)

    def open(self, number: int) -> Worker:
        dispatches = number == DISPATCHER
        section = self._sections[dispatches]
        assert section is not None
        name = "dispatcher" if dispatches else f"worker {number}"
        with self._lock:
            if dispatches not in self._images:
                self._images[dispatches] = ray.put(section.image)
            starting = sum(not worker.ready for worker in self._workers)
            options = self._request.options(starting, anywhere=number in self._without_room)
            self._without_room.discard(number)
            actor = _actor_class(dispatches).options(**options).remote(name, 1 + max(section.node_names, default=-1))
            worker = ActorWorker(
                number, name, actor, partial(_watch, self._answers), partial(_dispatcher_of, weakref.ref(self))
            )
            worker.pinned = isinstance(options["scheduling_strategy"], NodeAffinitySchedulingStrategy)
            self._workers.append(worker)
            worker.load(self._images[dispatches], self._measures_nodes)
            return worker

    def wait(self, timeout_s: float) -> list[Event]:
        try:
            self._answers.get(timeout=max(0.0, min(timeout_s, _LOOK_S)))
            while True:
                self._answers.get_nowait()
        except Empty:
            pass
        with self._lock:
            events = [event for worker in list(self._workers) for event in worker.settle()]
            if time.monotonic() - self._looked_at >= _LOOK_S:
                events += self._look()
        return events

    def pending(self, worker: Worker) -> list[Event]:
        assert isinstance(worker, ActorWorker)
        with self._lock:
            return worker.settle()

    def drop(self, worker: Worker) -> None:
        assert isinstance(worker, ActorWorker)
        with self._lock:
            if worker in self._workers:
                self._workers.remove(worker)
            if worker.gone or not worker.ready:
                _kill(worker)
            else:
                self._ask_to_finish(worker)
            self._forget_finished()

    def late_error(self, worker: Worker) -> Exception:
        return TimeoutError(
            f"{worker.name} has not started for {self._start_timeout_s:g} s (start_timeout): "
            f"{self._request.missing()}. "
            "Ask for fewer workers or less for each (num_workers, num_cpus, memory, resources), or add nodes"
        )

    def wake(self) -> None:
        self._answers.put(None)

    def measure_nodes(self, wanted: bool) -> None:
        with self._lock:
            self._measures_nodes = wanted
            for worker in self._workers:
                if worker.ready:
                    worker.ask_status(wanted)

    def close(self) -> None:
        """End all actors: 3 s at most. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            workers = list(self._workers)
            self._workers.clear()
            self._images.clear()
            if not ray.is_initialized():
                return
            with ExitStack() as stack:  # each is killed, whatever happens to another one
                for worker in [*workers, *(worker for worker, _, _ in self._leaving)]:
                    stack.callback(_kill, worker)
                for worker in workers:
                    if worker.ready and not worker.gone:
                        self._ask_to_finish(worker)
                ends_at = time.monotonic() + _FINISH_S
                for _, call, _ in self._leaving:
                    ray.wait([call], timeout=max(0.0, ends_at - time.monotonic()))
            self._leaving.clear()

    def _ask_to_finish(self, worker: ActorWorker) -> None:
        worker.gone = True
        worker.actor.supersede.remote(1 << 62)
        self._leaving.append((worker, worker.actor.finish.remote(), time.monotonic() + _FINISH_S))

    def _forget_finished(self) -> None:
        now = time.monotonic()
        for item in list(self._leaving):
            worker, call, until = item
            if now > until or ray.wait([call], timeout=0)[0]:
                _kill(worker)
                self._leaving.remove(item)

    # --- what nobody tells

    def _look(self) -> list[Event]:
        """Ask actors how they are; find those that do not answer, cannot start, or stand on a node that goes away."""
        now = self._looked_at = time.monotonic()
        self._forget_finished()
        draining = draining_nodes()
        events: list[Event] = []
        for worker in list(self._workers):
            if worker.gone:
                continue
            if not worker.ready:
                if now - worker.opened_at >= self._start_timeout_s:
                    events.append(Late(worker))
                elif worker.pinned and now - worker.opened_at >= _PLACEMENT_S and self._has_no_room(worker):
                    self._without_room.add(worker.number)
                    events.append(NoRoomHere(worker))
            elif self._silent_s is not None and worker.asked is not None and now - worker.asked_at > self._silent_s:
                _log.warning(
                    "%s has not answered for %g s (timeout): killing it. Does native code keep the interpreter lock?",
                    worker.name,
                    self._silent_s,
                )
                events.append(self._killed(worker, "was killed because it did not answer"))
            else:
                worker.ask_status(self._measures_nodes)
                if worker.hello is not None and worker.hello.node_id in draining and not worker.leaving:
                    worker.leaving = True
                    events.append(Leaving(worker))
        return events

    def _has_no_room(self, worker: ActorWorker) -> bool:
        """Does it wait for room on this node, while there is room on another one?"""
        return not has_process(worker.actor) and self._request.has_room_elsewhere()

    def _killed(self, worker: ActorWorker, cause: str) -> Event:
        worker.gone = True
        _kill(worker)
        pid = None if worker.hello is None else worker.hello.pid
        return Gone(worker, End(cause=cause, own=False, pid=pid))


@cache
def _actor_class(dispatches: bool) -> Any:
    """The class as Ray has it: made once, since Ray ships each class that it is given."""
    return ray.remote(concurrency_groups={CONTROL: 1})(DispatchActor if dispatches else ShardActor)


def _dispatcher_of(pool: weakref.ref[ActorPool]) -> Any:
    """The handle of the one that shards are to ask: the newest that has begun."""
    alive = pool()
    opened = [] if alive is None else alive._workers
    return next((worker.actor for worker in reversed(opened) if worker.dispatches), None)


def _kill_all(pid: int, workers: list[ActorWorker]) -> None:
    """Never in a forked child: they belong to its parent."""
    if os.getpid() == pid and ray.is_initialized():
        for worker in workers:
            _kill(worker)


def _watch(answers: SimpleQueue[int | None], number: int, future: Future[Any]) -> None:
    future.add_done_callback(lambda _: answers.put(number))


def _kill(worker: ActorWorker) -> None:
    """Idempotent."""
    worker.gone = True
    ray.kill(worker.actor, no_restart=True)
