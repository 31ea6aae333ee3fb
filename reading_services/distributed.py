"""``DistributedReadingService``: the ranks of a torch.distributed run divide the stream, and end together.

Runs in the main process of every rank; all talk between ranks is in the user's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist

from reading_services._agreement import AgreementIterator, Exchange, Report, Source, Uneven, inner_state
from torchpipe.errors import RankError
from torchpipe.execution.preparing import Begin, PreparingReadingService
from torchpipe.execution.reading_service import EpochStart
from torchpipe.graph import describe_graph, plan
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import DataPipe
from torchpipe.node.validate import check_count

__all__ = ["DistributedReadingService"]


class DistributedReadingService(PreparingReadingService):
    """Divides the stream among the ranks of the initialized process group, and lets their epochs end together.

    With s shards a rank, rank r of w has every w-th item from r on of the stream of w * s shards. The seed is that of
    rank 0. Every rank does the same in step: makes the loader, begins epochs, takes items, shuts down. What is said
    between ranks goes through a gloo group of this service's own, in the thread that calls ``next()``.

    Alone it executes the graph in process. For worker processes, put it first:
    ``SequentialReadingService(DistributedReadingService(), MultiProcessingReadingService(4))``.

    Args:
        timeout: seconds to wait for the other ranks, after which :class:`~torchpipe.errors.RankError` is raised. A rank
            whose process is gone is often noticed at once.
        uneven: when some ranks have more items than others. ``"drop"``: all end when the first has no more (as
            torchdata's ``fullsync``). ``"pad"``: ranks without items repeat (a copy of) their last one until all
            have ended. ``"raise"``: RankError on all ranks, after the last item that all have.
        agree_every: the ranks agree on blocks of so many items, with one small all-reduce a block, for which the
            quickest waits for the slowest. Each rank holds up to as many items ahead; more means fewer round trips.

    State: counts what this rank delivered, padding included; it loads on the same rank of as many ranks.

    Raises: ValueError or TypeError for arguments out of range; RuntimeError, when a loader is built, without an
    initialized process group, and GraphError if the graph does not divide the stream among ranks.
    """

    def __init__(
        self, timeout: float = 1800, *, uneven: Literal["drop", "pad", "raise"] = "drop", agree_every: int = 1
    ) -> None:
        super().__init__()
        if not timeout > 0:
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}")
        if uneven not in [item.value for item in Uneven]:
            raise ValueError(f'uneven must be "drop", "pad" or "raise", got {uneven!r}')
        self._timeout_s = timeout
        self._uneven = Uneven(uneven)
        self._every = check_count("agree_every", agree_every, at_least=1)
        self._rank, self._world_size = 0, 1
        self._graph_text = ""
        self._ranks: _Ranks | None = None

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world_size

    def agreed_length(self, lengths: list[int]) -> int:
        if self._uneven is Uneven.RAISE:
            return lengths[self._rank]
        return min(lengths) if self._uneven is Uneven.DROP else max(lengths)

    def describe(self) -> str:
        return f"rank {self._rank} of {self._world_size}, uneven ranks: {self._uneven.value}"

    def prepare(self, datapipe: DataPipe) -> DataPipe:
        if not dist.is_available():
            raise RuntimeError("DistributedReadingService needs torch.distributed, which this build of torch lacks")
        if not dist.is_initialized():
            raise RuntimeError(
                "DistributedReadingService needs the default process group: call "
                "torch.distributed.init_process_group(...) before you make the loader"
            )
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        plan(datapipe).check_num_shards(1, self._world_size)
        self._graph_text = describe_graph(datapipe)
        self._connect()
        return datapipe

    def prepare_iteration(self, start: EpochStart) -> EpochStart:
        """Agree on the epoch. Raises: RankError if the ranks are not at the same position of the same run."""
        ranks = self._connect()
        if ranks is None:
            return start
        same = {
            "epoch": start.epoch,
            "delivered": start.delivered,
            "num_shards": start.num_shards,
            "uneven": self._uneven.value,
            "agree_every": self._every,
            "graph": self._graph_text,
        }
        if start.delivered:
            same["seed"] = start.seed
        told = ranks.objects((start.seed, same))
        for name in sorted({name for _, theirs in told for name in theirs}):
            values = [theirs.get(name) for _, theirs in told]
            if any(value != values[0] for value in values):
                shown = ", ".join(f"rank {rank}: {value!r}" for rank, value in enumerate(values))
                raise RankError(
                    f"the ranks do not begin the same epoch: {name} differs ({shown}). Make the same loader on every "
                    "rank, and load on each the state that it saved at the same step"
                )
        return replace(start, seed=told[0][0])

    def run_iteration(self, start: EpochStart, begin: Begin) -> NodeIterator[Any]:
        ranks = self._connect()
        if ranks is None:
            return begin(start)
        inner = begin(replace(start, state=inner_state(start.state, start.delivered)))
        return AgreementIterator(inner, ranks, uneven=self._uneven, every=self._every, state=start.state)

    def release(self) -> None:
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close()

    def _connect(self) -> _Ranks | None:
        """The group of this service; None if there is a single rank, which need not talk."""
        if self._ranks is None and self._world_size > 1:
            self._ranks = _Ranks(self._rank, self._world_size, self._timeout_s)
        return self._ranks


class _Ranks(Exchange):
    """All ranks, through a gloo group: NCCL would need the GPU, whose queue this must not wait for."""

    def __init__(self, rank: int, world_size: int, timeout_s: float) -> None:
        self.rank = rank
        self._world_size = world_size
        self._timeout_s = timeout_s
        with self._answered():
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    def reports(self, mine: Report) -> list[Report]:
        table = torch.zeros((self._world_size, 3), dtype=torch.int64)
        table[self.rank] = torch.tensor([mine.ready, mine.source, mine.can_repeat])
        with self._answered():
            dist.all_reduce(table, group=self._group)
        return [Report(ready, Source(source), bool(can_repeat)) for ready, source, can_repeat in table.tolist()]

    def texts(self, mine: str) -> list[str]:
        return self.objects(mine)

    def objects(self, mine: Any) -> list[Any]:
        told: list[Any] = [None] * self._world_size
        with self._answered():
            dist.all_gather_object(told, mine, group=self._group)
        return told

    @contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankError(
                f"rank {self.rank} of {self._world_size} has no answer from another rank (timeout {self._timeout_s:g} "
                f"s): has one died, or stopped to iterate while the others went on? {str(error)[:300]}"
            ) from error

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group(self._group)
