"""Ranks for tests: without any talk between them, and with talk between threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from reading_services.distributed import _last_item
from reading_services.ranks.agreement import AgreementIterator, Exchange, inner_state
from reading_services.ranks.ranked import RankedReadingService
from torchpipe.errors import RankError
from torchpipe.execution.epoch import EpochStart, Uneven
from torchpipe.execution.preparing import Begin
from torchpipe.execution.reading_service import InProcessReadingService
from torchpipe.node.iterator import NodeIterator
from torchpipe.state import SnapshotPolicy

__all__ = ["FixedRank", "Table", "TogetherRank", "on_all_ranks"]


class FixedRank(RankedReadingService):
    """Says which rank this is, and no more."""

    def __init__(self, rank: int, world_size: int, total_shards: int | None = None, uneven: str | None = None) -> None:
        super().__init__(total_shards, None if uneven is None else Uneven(uneven))
        self._executing = InProcessReadingService(policy=partial(SnapshotPolicy, every=2))
        self._place = (rank, world_size)

    @property
    def rank(self) -> int:
        return self._place[0]

    @property
    def world_size(self) -> int:
        return self._place[1]

    def prepare(self, datapipe: Any) -> Any:
        if self.total_shards is not None:
            self.check_graph(datapipe)
        return datapipe

    def prepare_iteration(self, start: EpochStart) -> EpochStart:
        return self.hosting(start)


class Table:
    """Where the threads that play ranks put down what they tell each other.

    One of them runs at a time, for all have one process's global random states.
    """

    def __init__(self, world_size: int) -> None:
        self.told: list[Any] = [None] * world_size
        self.barrier = threading.Barrier(world_size, timeout=30)
        self.turn = threading.Lock()

    def wait(self) -> None:
        """Let the others run, until all are here. Raises: BrokenBarrierError."""
        held = self.turn.locked()
        if held:
            self.turn.release()
        try:
            self.barrier.wait()
        finally:
            if held:
                self.turn.acquire()


class _Threads(Exchange):
    def __init__(self, rank: int, table: Table) -> None:
        self.rank = rank
        self._table = table

    def _share(self, mine: Any) -> list[Any]:
        try:
            self._table.told[self.rank] = mine
            self._table.wait()
            told = list(self._table.told)
            self._table.wait()
        except threading.BrokenBarrierError:
            raise RankError("another rank does not answer") from None
        return told

    def numbers(self, mine: Sequence[int]) -> list[list[int]]:
        return self._share([int(number) for number in mine])

    def texts(self, mine: str) -> list[str]:
        return self._share(mine)


class TogetherRank(FixedRank):
    """Ends with the other ranks, which are threads."""

    def __init__(self, rank: int, table: Table, uneven: str, every: int, total_shards: int | None = None) -> None:
        super().__init__(rank, len(table.told), total_shards, uneven)
        self._exchange = _Threads(rank, table)
        self._ending = Uneven(uneven)
        self._every = every

    def agreed_position(self, delivered: list[int]) -> int:
        return min(delivered)

    def gather(self, mine: Any) -> list[Any]:
        return self._exchange._share(mine)

    def run_iteration(self, start: EpochStart, begin: Begin) -> NodeIterator[Any]:
        inner = begin(replace(start, state=inner_state(start.state, start.delivered)))
        last = list if start.state is None else partial(_last_item, start, begin)
        return AgreementIterator(
            inner,
            self._exchange,
            uneven=self._ending,
            every=self._every,
            state=start.state,
            delivered=start.delivered,
            last=last,
            parts=self.total_shards or start.num_shards * self.world_size,
        )


def on_all_ranks(world_size: int, run: Callable[[int, Table], Any]) -> list[Any]:
    """What ``run(rank, table)`` returns, or the exception that it raises, in a thread for each rank."""
    table = Table(world_size)
    results: list[Any] = [None] * world_size

    def play(rank: int) -> None:
        with table.turn:
            try:
                results[rank] = run(rank, table)
            except Exception as error:
                results[rank] = error

    threads = [threading.Thread(target=play, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
