"""Shards at work inside a worker: begun at cursors, producing chunks, closed. The same for every kind of worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from reading_services.engine.messages import Report, ShardStart, StartEpoch
from reading_services.hosting.items import Images, unsendable
from reading_services.hosting.reports import Reports
from torchpipe.execution.dispatch import DispatchSupply
from torchpipe.execution.shard import Chunk, InitFn, ResetFn, Shard, ShardGraphs
from torchpipe.node.failures import add_note
from torchpipe.node.host import Trace
from torchpipe.node.traits import DataPipe
from torchpipe.state import SnapshotPolicy

__all__ = ["ProgressNote", "ShardHost", "Supply", "keep_sendable"]


class ProgressNote(Protocol):
    """Notes what is being made, so that somebody can tell after a death."""

    def skipping_to(self, lane: int, index: int) -> None:
        """``lane`` is being brought to item ``index``, which is not begun yet."""

    def making(self, lane: int, index: int, count: int) -> int:
        """``count`` items from ``index`` on of ``lane`` are being made from now on; or fewer: so many."""

    def remade(self) -> None:
        """An item before that one was made again."""

    def idle(self) -> None:
        """Nothing is being made."""

    def trace(self, *, note_steps: bool) -> Trace | None:
        """The trace of each node at work: with ``note_steps`` to name a culprit; else to time nodes, if wanted."""


class Supply(DispatchSupply):
    """The supply of dispatched items, or entries, for the shards of a worker."""

    def check(self) -> None:
        """Raises: whatever says that the items are not wanted any more."""

    def close(self) -> None:
        """Let go of what it holds. Idempotent."""


@dataclass(slots=True)
class _Lane:
    shard: Shard
    isolate_before: int
    images: Images


class ShardHost:
    """``memory(size_bytes)`` gives room to make large items in. ``passing``: what is no error of the user's.

    Reports are told before the chunk that they belong to: :meth:`take_reports`.
    """

    def __init__(
        self,
        graphs: tuple[DataPipe, ...],
        init_fn: InitFn | None,
        reset_fn: ResetFn | None,
        policy: Callable[[], SnapshotPolicy],
        progress: ProgressNote,
        *,
        memory: Callable[[int], Any] | None = None,
        passing: tuple[type[BaseException], ...] = (),
    ) -> None:
        self._graphs, self._reset_fn, self._policy, self._progress = (
            ShardGraphs(graphs, init_fn, reset_fn),
            reset_fn,
            policy,
            progress,
        )
        self._memory, self._passing = memory, passing
        self.epoch: StartEpoch | None = None
        self.supply: Supply | None = None
        self._lanes: dict[int, _Lane] = {}
        self._installed: Shard | None = None  # whose global random states are in place
        self._reports = Reports()

    @property
    def lanes(self) -> list[int]:
        """The lanes that produce."""
        return list(self._lanes)

    def take_reports(self) -> list[Report]:
        """The reports for the user, each once."""
        return self._reports.take(0 if self.epoch is None else self.epoch.generation)

    def begin(self, start: StartEpoch, supply: Supply | None) -> None:
        """Let this be the present epoch: its shards can be started. Those that it says go on; all others end."""
        if not start.keep:
            self.end()
        elif supply is not self.supply and self.supply is not None:
            self.supply.close()
        for number in [number for number in self.lanes if number not in start.keep]:
            self._graphs.forget(self._lanes[number].shard.spec)  # another worker goes on with it
            self.retire(number)
        self.epoch, self.supply = start, supply

    def start(self, start: ShardStart) -> Chunk | None:
        """Bring a shard to its cursor. None, or the chunk of one that cannot be started: its error."""
        epoch, supply = self.epoch, self.supply
        assert epoch is not None
        self._progress.skipping_to(start.lane, start.cursor.count)
        spec = epoch.spec(start.shard)
        self._install(None)
        with self._reports.of_warnings():
            try:
                shard = Shard(
                    self._graphs.of(spec),
                    spec,
                    branch=start.branch,
                    reset_fn=self._reset_fn,
                    policy=self._policy,
                    supply=supply,
                    trace=self._progress.trace(note_steps=epoch.isolate_items),
                    memory=self._memory,
                    on_left_out=partial(self._reports.left_out, start.shard, lane=start.lane),
                    on_again=self._progress.remade,
                    warn=self._reports.warning,
                    passing=(SystemExit, *self._passing),
                )
                shard.within(partial(shard.start, start.cursor, snapshot_first=start.snapshot_first))
                self._check_wanted()
                self._lanes[start.lane] = _Lane(shard, start.isolate_before, Images(shard.yields_new_tensors))
                return None
            except Exception as error:
                self._check_wanted()
                add_note(error, f"torchpipe: while shard {start.shard} of {epoch.num_shards} was being started")
                return Chunk(error=error)
            finally:
                self._progress.idle()

    def produce(self, number: int, limit: int, seconds: float) -> Chunk:
        """The next chunk of a lane: at most ``limit`` items, of which none is begun after ``seconds``."""
        lane = self._lanes[number]
        assert self.epoch is not None
        if self.epoch.isolate_items or lane.shard.produced < lane.isolate_before:
            limit = 1
        self._install(lane.shard)
        keep = lane.images if limit > 1 else None  # one alone is sent before the next is begun
        chunk = lane.shard.produce(limit, seconds, partial(self._progress.making, number), keep)
        self._check_wanted()
        self._progress.idle()
        self._reports.replay(chunk.notice)
        return chunk

    def retire(self, number: int) -> None:
        """Close a shard."""
        shard = self._lanes.pop(number).shard
        self._install(shard)
        shard.close()
        self._install(None)

    def leave(self) -> None:
        """Put the global random states back that the worker had: somebody else is at work in its process."""
        self._install(None)

    def end(self) -> None:
        """Close all shards of the epoch. Idempotent."""
        for number in self.lanes:
            self.retire(number)
        self.epoch = None
        self._reports.take()
        supply, self.supply = self.supply, None
        if supply is not None:
            supply.close()

    def _check_wanted(self) -> None:
        """Also where the user's code has swallowed what the supply has raised."""
        if self.supply is not None:
            self.supply.check()

    def _install(self, shard: Shard | None) -> None:
        """Let the global random states be those of ``shard``; they stay while no other one is at work."""
        if shard is not self._installed:
            if self._installed is not None:
                self._installed.leave()
            self._installed = shard
            if shard is not None:
                shard.enter()


def keep_sendable(chunk: Chunk, error: Exception) -> None:
    """Cut the chunk before the first item that cannot be sent, which becomes its error."""
    index, chunk.error = unsendable(chunk.items, "from the worker to the main process", error)
    del chunk.items[index:]
    chunk.snapshot, chunk.ended = None, False
