"""Places that are Ray actors, and the one wait for all that can happen to them.

Runs in the driver, which owns the actors: they end with it. Ray calls back, in a thread of its own, when a call has
its answer; the callback does nothing but wake the wait. The wait ends with an answer, with :meth:`RayPlaces.wake`, or
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
from dataclasses import dataclass
from functools import cache, partial
from queue import Empty, SimpleQueue
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from reading_services.actors.cluster import ActorRequest
from reading_services.actors.dispatch_actor import DispatchActor
from reading_services.actors.place import ActorPlace
from reading_services.actors.replies import Hello
from reading_services.actors.shard_actor import CONTROL, ShardActor
from reading_services.engine.places import DISPATCHER, End, Event, Gone, Late, Leaving, Place, Places, Unplaced
from torchpipe.compat.ray_private import draining_nodes, has_process

__all__ = ["ActorSection", "RayPlaces"]

_log = logging.getLogger("torchpipe")

_LOOK_S = 1.0  # after actors and nodes
_PLACE_S = 2.0  # for an actor to get its process on the node that it was put on
_FINISH_S = 3.0  # for an actor to close what it has open


@dataclass(frozen=True)
class ActorSection:
    """What an actor runs: the pickle of a part of the graph, and the numbers of its nodes end before ``nodes``."""

    image: bytes
    nodes: int


class RayPlaces(Places):
    """``close`` ends all actors; those of a forgotten object end with it, and all of them with the driver.

    ``silent_s``: after how long without an answer to "how are you" one is killed (None: never). ``start_timeout_s``:
    how long an actor may take to be placed and to start, before it is late.
    """

    method = "ray"

    def __init__(
        self,
        shards: ActorSection,
        dispatched: ActorSection | None,
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
        self._places: list[ActorPlace] = []
        self._leaving: list[tuple[ActorPlace, Any, float]] = []  # asked to finish, until when
        self._answers: SimpleQueue[int | None] = SimpleQueue()
        self._unplaced: set[int] = set()  # the numbers of those that this node has no room for
        self._measures_nodes = self._closed = False
        self._looked_at = time.monotonic()
        # An object that is forgotten ends its actors at once; at exit, Ray does
        weakref.finalize(self, _kill_all, os.getpid(), self._places).atexit = False

    def pids(self) -> list[int]:
        """The process ids of the actors that can begin, on their nodes."""
        return [hello.pid for hello in self.processes()]

    def processes(self) -> list[Hello]:
        """Where the actors run that have started, in the order of their numbers."""
        return [place.hello for place in self._in_order() if place.hello is not None]

    def nodes(self) -> dict[str, str]:
        """The name of each actor -> the id of its node."""
        return {place.name: place.hello.node_id for place in self._in_order() if place.hello is not None}

    def actors(self) -> list[Any]:
        """The handles of the actors, in the order of their numbers."""
        return [place.actor for place in self._in_order()]

    def _in_order(self) -> list[ActorPlace]:
        return sorted(self._places, key=lambda place: place.number)

    def open(self, number: int) -> Place:
        dispatches = number == DISPATCHER
        section = self._sections[dispatches]
        assert section is not None
        name = "dispatcher" if dispatches else f"worker {number}"
        with self._lock:
            if dispatches not in self._images:
                self._images[dispatches] = ray.put(section.image)
            starting = sum(not place.ready for place in self._places)
            options = self._request.options(starting, anywhere=number in self._unplaced)
            self._unplaced.discard(number)
            actor = _actor_class(dispatches).options(**options).remote(name, section.nodes)
            place = ActorPlace(
                number, name, actor, partial(_watch, self._answers), partial(_dispatcher_of, weakref.ref(self))
            )
            place.pinned = isinstance(options["scheduling_strategy"], NodeAffinitySchedulingStrategy)
            self._places.append(place)
            place.load(self._images[dispatches], self._measures_nodes)
            return place

    def wait(self, timeout_s: float) -> list[Event]:
        try:
            self._answers.get(timeout=max(0.0, min(timeout_s, _LOOK_S)))
            while True:
                self._answers.get_nowait()
        except Empty:
            pass
        with self._lock:
            events = [event for place in list(self._places) for event in place.settle()]
            if time.monotonic() - self._looked_at >= _LOOK_S:
                events += self._look()
        return events

    def pending(self, place: Place) -> list[Event]:
        assert isinstance(place, ActorPlace)
        with self._lock:
            return place.settle()

    def drop(self, place: Place) -> None:
        assert isinstance(place, ActorPlace)
        with self._lock:
            if place in self._places:
                self._places.remove(place)
            if place.gone or not place.ready:
                _kill(place)
            else:
                self._ask_to_finish(place)
            self._forget_finished()

    def late_error(self, place: Place) -> Exception:
        return TimeoutError(
            f"{place.name} has not started for {self._start_timeout_s:g} s (start_timeout): {self._request.missing()}. "
            "Ask for fewer workers or less for each (num_workers, num_cpus, memory, resources), or add nodes"
        )

    def wake(self) -> None:
        self._answers.put(None)

    def measure_nodes(self, wanted: bool) -> None:
        with self._lock:
            self._measures_nodes = wanted
            for place in self._places:
                if place.ready:
                    place.ask_status(wanted)

    def close(self) -> None:
        """End all actors: 3 s at most. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            places = list(self._places)
            self._places.clear()
            self._images.clear()
            if not ray.is_initialized():
                return
            with ExitStack() as stack:  # each is killed, whatever happens to another one
                for place in [*places, *(place for place, _, _ in self._leaving)]:
                    stack.callback(_kill, place)
                for place in places:
                    if place.ready and not place.gone:
                        self._ask_to_finish(place)
                ends_at = time.monotonic() + _FINISH_S
                for _, call, _ in self._leaving:
                    ray.wait([call], timeout=max(0.0, ends_at - time.monotonic()))
            self._leaving.clear()

    def _ask_to_finish(self, place: ActorPlace) -> None:
        place.gone = True
        place.actor.supersede.remote(1 << 62)
        self._leaving.append((place, place.actor.finish.remote(), time.monotonic() + _FINISH_S))

    def _forget_finished(self) -> None:
        now = time.monotonic()
        for item in list(self._leaving):
            place, call, until = item
            if now > until or ray.wait([call], timeout=0)[0]:
                _kill(place)
                self._leaving.remove(item)

    # --- what nobody tells

    def _look(self) -> list[Event]:
        """Ask actors how they are; find those that do not answer, cannot start, or stand on a node that goes away."""
        now = self._looked_at = time.monotonic()
        self._forget_finished()
        draining = draining_nodes()
        events: list[Event] = []
        for place in list(self._places):
            if place.gone:
                continue
            if not place.ready:
                if now - place.opened_at >= self._start_timeout_s:
                    events.append(Late(place))
                elif place.pinned and now - place.opened_at >= _PLACE_S and self._has_no_room(place):
                    self._unplaced.add(place.number)
                    events.append(Unplaced(place))
            elif self._silent_s is not None and place.asked is not None and now - place.asked_at > self._silent_s:
                _log.warning("%s has not answered for %g s: killing it", place.name, self._silent_s)
                events.append(self._killed(place, "was killed, as it did not answer"))
            else:
                place.ask_status(self._measures_nodes)
                if place.hello is not None and place.hello.node_id in draining and not place.leaving:
                    place.leaving = True
                    events.append(Leaving(place))
        return events

    def _has_no_room(self, place: ActorPlace) -> bool:
        """Does it wait for room on this node, while there is room on another one?"""
        return not has_process(place.actor) and self._request.has_room_elsewhere()

    def _killed(self, place: ActorPlace, cause: str) -> Event:
        place.gone = True
        _kill(place)
        pid = None if place.hello is None else place.hello.pid
        return Gone(place, End(cause=cause, own=False, pid=pid))


@cache
def _actor_class(dispatches: bool) -> Any:
    """As Ray has it: made once, since it ships each that it is given."""
    return ray.remote(concurrency_groups={CONTROL: 1})(DispatchActor if dispatches else ShardActor)


def _dispatcher_of(places: weakref.ref[RayPlaces]) -> Any:
    """The handle of the one that shards are to ask: the newest that has begun."""
    alive = places()
    opened = [] if alive is None else alive._places
    return next((place.actor for place in reversed(opened) if place.dispatches), None)


def _kill_all(pid: int, places: list[ActorPlace]) -> None:
    """Never in a forked child: they belong to its parent."""
    if os.getpid() == pid and ray.is_initialized():
        for place in places:
            _kill(place)


def _watch(answers: SimpleQueue[int | None], number: int, future: Future[Any]) -> None:
    future.add_done_callback(lambda _: answers.put(number))


def _kill(place: ActorPlace) -> None:
    """Idempotent."""
    place.gone = True
    ray.kill(place.actor, no_restart=True)
