"""``LoaderStats`` as measurements with labels, in which counters count on over epochs. Runs in the user's process."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torchpipe.observe.text import FigureSource, NewEvents, spent_s
from torchpipe.stats import LoaderStats

__all__ = ["Measurement", "Measurements"]

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Measurement:
    """``name`` without a prefix; a counter never falls."""

    kind: Literal["counter", "gauge"]
    name: str
    unit: str
    help: str
    labels: Labels
    value: float


class Measurements:
    """The measurements of one loader. Thread-safe."""

    def __init__(self, loader: FigureSource) -> None:
        self._loader = loader
        self._lock = threading.Lock()
        self._last: dict[tuple[str, Labels], float] = {}
        self._base: dict[tuple[str, Labels], float] = {}  # of the epochs before
        self._began_at: float | None = None
        self._events = NewEvents()
        self._by_kind: dict[str, int] = {}
        look_last = getattr(loader, "look_last", None)  # what an epoch did after the last look at it counts, too
        if look_last is not None:
            look_last(weakref.WeakMethod(self.take))

    def take(self) -> list[Measurement]:
        with self._lock:
            stats = self._loader.stats()  # in here: an older look after a newer one would count as an epoch of its own
            if stats.began_at != self._began_at:
                self._began_at = stats.began_at
                for key, value in self._last.items():
                    self._base[key] = self._base.get(key, 0.0) + value
                self._last.clear()
            for event in self._events.of(stats):
                self._by_kind[event.kind] = self._by_kind.get(event.kind, 0) + 1
            taken = [self._counted(item) for item in _of(stats)]
            return taken + [
                Measurement("counter", "events", "", "Restarts, replays, skips and so on", (("kind", kind),), count)
                for kind, count in sorted(self._by_kind.items())
            ]

    def _counted(self, item: Measurement) -> Measurement:
        if item.kind == "gauge":
            return item
        key = (item.name, item.labels)
        self._last[key] = max(item.value, self._last.get(key, 0.0))
        value = self._base.get(key, 0.0) + self._last[key]
        return Measurement(item.kind, item.name, item.unit, item.help, item.labels, value)


def _of(stats: LoaderStats) -> Iterator[Measurement]:
    consumer = stats.consumer
    yield Measurement("counter", "items", "", "Items handed to the loop", (), consumer.items)
    yield Measurement("counter", "wait", "seconds", "Time that the loop waited for data", (), consumer.wait_s)
    yield Measurement("counter", "own", "seconds", "Time in the loop's own code", (), consumer.own_s)
    yield Measurement("gauge", "epoch", "", "The epoch under way", (), stats.epoch)
    yield Measurement("gauge", "workers", "", "Worker processes or threads", (), stats.workers)
    yield Measurement("gauge", "delivered", "", "Items of this epoch so far", (), stats.delivered)
    labels: Labels
    for process in stats.processes:
        for doing, seconds in spent_s(process).items():
            labels = (("process", process.name), ("doing", doing))
            yield Measurement("counter", "process", "seconds", "What processes spend their time on", labels, seconds)
        own = (("process", process.name),)
        yield Measurement("counter", "restarts", "", "Processes that died and were replaced", own, process.restarts)
        if process.bytes:
            yield Measurement("counter", "process_sent", "bytes", "Bytes of what a process sent", own, process.bytes)
        if process.memory_bytes is not None:
            yield Measurement("gauge", "memory", "bytes", "Resident memory", own, process.memory_bytes)
    for node in stats.nodes:
        labels = (("node", f"{node.number} {node.name}"),)
        if node.items is not None:
            yield Measurement("counter", "node_items", "", "Items that a node handed on", labels, node.items)
        if node.self_s is not None:
            yield Measurement("counter", "node", "seconds", "Time in a node itself", labels, node.self_s)
        if node.bytes is not None:
            yield Measurement("counter", "node_out", "bytes", "Bytes of what a node handed on", labels, node.bytes)
        yield Measurement("counter", "node_errors", "", "Exceptions that a node raised", labels, node.errors)
        yield Measurement("counter", "node_skipped", "", "Items left out because of an error", labels, node.skipped)
    for queue in stats.queues:
        labels = (("queue", queue.name), ("unit", queue.unit))
        yield Measurement("gauge", "queue", "", "What waits in a queue", labels, queue.fill)
