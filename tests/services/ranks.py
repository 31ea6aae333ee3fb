"""Ranks for tests: without any talk between them, and with talk between threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from reading_services import PreparingReadingService
from reading_services._agreement import AgreementIterator, Exchange, Report, Uneven, inner_state
from torchpipe.errors import RankError
from torchpipe.execution.preparing import Begin
from torchpipe.execution.reading_service import EpochStart
from torchpipe.node.iterator import NodeIterator

__all__ = ["FixedRank", "Table", "TogetherRank", "on_all_ranks"]


class FixedRank(PreparingReadingService):
    """Says which rank this is, and no more."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__()
        self._place = (rank, world_size)

    @property
    def rank(self) -> int:
        return self._place[0]

    @property
    def world_size(self) -> int:
        return self._place[1]


class Table:
    """Where the threads that play ranks put down what they tell each other."""

    def __init__(self, world_size: int) -> None:
        self.told: list[Any] = [None] * world_size
        self.barrier = threading.Barrier(world_size, timeout=20)


class _Threads(Exchange):
    def __init__(self, rank: int, table: Table) -> None:
        self.rank = rank
        self._table = table

    def _share(self, mine: Any) -> list[Any]:
        try:
            self._table.told[self.rank] = mine
            self._table.barrier.wait()
            told = list(self._table.told)
            self._table.barrier.wait()
        except threading.BrokenBarrierError:
            raise RankError("another rank does not answer") from None
        return told

    def reports(self, mine: Report) -> list[Report]:
        return self._share(mine)

    def texts(self, mine: str) -> list[str]:
        return self._share(mine)


class TogetherRank(FixedRank):
    """Ends with the other ranks, which are threads."""

    def __init__(self, rank: int, table: Table, uneven: str, every: int) -> None:
        super().__init__(rank, len(table.told))
        self._exchange = _Threads(rank, table)
        self._uneven = Uneven(uneven)
        self._every = every

    def run_iteration(self, start: EpochStart, begin: Begin) -> NodeIterator[Any]:
        inner = begin(replace(start, state=inner_state(start.state, start.delivered)))
        return AgreementIterator(inner, self._exchange, uneven=self._uneven, every=self._every, state=start.state)


def on_all_ranks(world_size: int, run: Callable[[int, Table], Any]) -> list[Any]:
    """What ``run(rank, table)`` returns, or the exception that it raises, in a thread for each rank."""
    table = Table(world_size)
    results: list[Any] = [None] * world_size

    def play(rank: int) -> None:
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
