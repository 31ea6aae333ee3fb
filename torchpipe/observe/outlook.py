"""The rates that other numbers of workers would have: a pure function of the figures.

An item takes so many seconds of a worker, whatever the number of workers, but for the work that every shard does again;
n workers deliver n items in that time. The loop, the work that is done once (by a dispatcher, a sampler, the main
section, a stage that runs ahead) and the cores bound that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from torchpipe.observe.text import PlainData
from torchpipe.stats.model import LoaderStats, NodeStats, rebuilt_s

__all__ = ["Limit", "Outlook", "Prediction"]

Limit: TypeAlias = Literal["loop", "once", "cores", "repeated"]

_MOST_WORKERS = 64
_FULL = 0.97  # of what the loop could take: that much keeps up


@dataclass(frozen=True, kw_only=True)
class Prediction(PlainData):
    """The rate of so many workers; ``wait_share``: the part of its time that the loop would then wait."""

    workers: int
    items_per_s: float
    wait_share: float


@dataclass(frozen=True)
class Outlook:
    """The cost of an item, in seconds, by the threads and processes that spend them."""

    loop_s: float  # the loop's own
    serial_s: float  # of rebuilding it in this process
    main_s: float  # of what else the loop's thread does, once: the main section, a sampler
    once_s: float  # of the slowest that runs beside the loop, once: a dispatcher, a stage that runs ahead
    worker_s: float  # of a worker, without what every shard does again
    repeated_s: float  # what every shard does again: of each of them
    cpu_s: float | None  # of all processes
    cores: int
    complete: bool

    @classmethod
    def of(cls, stats: LoaderStats) -> Outlook:
        consumer = stats.consumer
        delivered = max(1, consumer.items - 1)
        workers = stats.worker_processes
        made = max(1, sum(worker.items for worker in workers) if workers else consumer.items)
        busy_s = sum(process.busy_s for process in workers or stats.processes)
        dispatched_s = _dispatched_s(stats, made)
        dividable_s = busy_s if workers else busy_s - made * dispatched_s  # this process did that as well
        repeated = [node for node in stats.nodes if node.repeated and node.section == "shard"]
        measured = all(node.self_s is not None for node in repeated)
        repeated_s = _own_s(repeated)
        return cls(
            loop_s=consumer.own_s / delivered,
            serial_s=rebuilt_s(stats.merges) / delivered,
            main_s=_main_s(stats) / delivered + (0.0 if stats.dispatcher else dispatched_s),
            once_s=max(_ahead_s(stats) / delivered, dispatched_s if stats.dispatcher else 0.0),
            worker_s=max(0.0, dividable_s - repeated_s) / made,
            repeated_s=repeated_s / made / max(1, stats.shards),
            cpu_s=_cpu_s(stats, made),
            cores=stats.cores,
            complete=busy_s > 0 and (measured or not repeated),
        )

    @classmethod
    def foretold(cls, stats: LoaderStats, *, item_s: float, cpu_s: float, loop_s: float) -> Outlook:
        """The outlook where an item takes ``item_s`` of one process, ``cpu_s`` of a core, and ``loop_s`` of the loop;
        ``stats`` tell which parts of it are done once, or by every shard.
        """
        measured = cls.of(stats)
        factor = item_s / max(1e-12, measured.item_s)
        return replace(
            measured,
            worker_s=factor * measured.worker_s,
            repeated_s=factor * measured.repeated_s,
            main_s=factor * measured.main_s,
            once_s=factor * measured.once_s,
            cpu_s=cpu_s,
            loop_s=loop_s,
            complete=measured.complete and stats.consumer.items > 1,
        )

    @property
    def item_s(self) -> float:
        """The seconds that an item takes of one process that does all of it."""
        return self.worker_s + self.repeated_s + self.main_s + self.once_s

    def rate(self, workers: int) -> float:
        """Items a second."""
        return min(self.ceiling, 1 / max(1e-12, self.worker_s / workers + self.repeated_s))

    @property
    def ceiling(self) -> float:
        """Whatever the number of workers."""
        return min(1 / max(1e-12, self.loop_s + self.serial_s + self.main_s), self._beside, self._cores)

    @property
    def _beside(self) -> float:
        return 1 / max(1e-12, self.once_s)

    @property
    def _cores(self) -> float:
        return self.cores / self.cpu_s if self.cpu_s else float("inf")

    @property
    def _wanted(self) -> float:
        """The items a second that the loop could take, if it did not wait."""
        return _FULL / max(1e-12, self.loop_s + self.serial_s)

    @property
    def limit(self) -> Limit:
        """The limit that more workers would come up against first."""
        once = min(1 / max(1e-12, self.loop_s + self.serial_s + self.main_s), self._beside)
        limits: dict[Limit, float] = {"loop": self._wanted, "once": once, "cores": self._cores}
        if self.repeated_s:
            limits["repeated"] = 1 / self.repeated_s
        return min(limits, key=lambda name: limits[name])

    def keeps_up(self) -> int | None:
        """With how many workers the loop hardly waits."""
        if not self.complete:
            return None
        return next((count for count in range(1, _MOST_WORKERS + 1) if self.rate(count) >= self._wanted), None)

    def predictions(self, counts: Iterable[int]) -> tuple[Prediction, ...]:
        if not self.complete:
            return ()
        return tuple(
            Prediction(
                workers=count,
                items_per_s=(rate := self.rate(count)),
                wait_share=min(1.0, max(0.0, 1 - rate * self.loop_s)),
            )
            for count in sorted(set(counts))
        )


def _own_s(nodes: Iterable[NodeStats]) -> float:
    return sum(node.self_s or 0.0 for node in nodes)


def _dispatched_s(stats: LoaderStats, made: int) -> float:
    """The seconds spent, before items are dealt, on each that was ``made``. A dispatcher's lead does not count."""
    busy = [process.busy_s for process in stats.processes if process.kind == "dispatcher"]
    if not busy:
        return _own_s(node for node in stats.nodes if node.section == "dispatch") / made
    dispatched = {node.number: node.items for node in stats.nodes if node.section == "dispatch" and node.items}
    readers = [(node, dispatched[number]) for node in stats.nodes for number in node.inputs if number in dispatched]
    taken = [(node.items or 0) / items for node, items in readers if node.section == "shard"]  # at least that part
    return sum(busy) * min(1.0, max(taken, default=0.0)) / made


def _before_stages(stats: LoaderStats) -> list[set[int]]:
    """For each stage, the numbers of the main section's nodes that run in its threads, not in the loop's."""
    reads = {node.number: node.inputs for node in stats.nodes if node.section == "main"}
    stages = {stage.node for stage in stats.stages}
    found = []
    for stage in stats.stages:
        before: set[int] = set()
        following = list(reads.get(stage.node, reads))  # one that a service adds is behind all of them
        while following:
            number = following.pop()
            if number in reads and number not in before | stages:
                before.add(number)
                following += reads[number]
        found.append(before)
    return found


def _main_s(stats: LoaderStats) -> float:
    """The seconds that the loop's thread spent in nodes of the main section."""
    elsewhere = {stage.node for stage in stats.stages}.union(*_before_stages(stats))
    nodes = [node for node in stats.nodes if node.section == "main" and node.number not in elsewhere]
    if all(node.self_s is not None for node in nodes):
        return _own_s(nodes)
    waited_s = stats.stages[0].feed.consumer_wait_s if stats.stages else sum(merge.wait_s for merge in stats.merges)
    return max(0.0, stats.consumer.wait_s - waited_s)


def _ahead_s(stats: LoaderStats) -> float:
    """The seconds that the busiest thread of a stage spent: on nodes of the main section, or on moving batches."""
    making = [_own_s(node for node in stats.nodes if node.number in before) for before in _before_stages(stats)]
    moving = [stage.feed.transfer_s / max(1, stage.threads) for stage in stats.stages]
    return max([*making, *moving], default=0.0)


def _cpu_s(stats: LoaderStats, made: int) -> float | None:
    """CPU seconds for each item. What this process spent until the first item, on starting others, comes once."""
    cpu_s = 0.0
    consumer = stats.consumer
    for process in stats.processes:
        if process.cpu_s is None:
            return None
        whole_s = (consumer.start_s or 0.0) + consumer.elapsed_s
        once = process.kind == "main" and stats.workers and whole_s
        cpu_s += process.cpu_s * (consumer.elapsed_s / whole_s if once else 1.0)
    return cpu_s / made
