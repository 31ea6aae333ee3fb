"""Worker processes that make an item of each entry that the main process deals to them: what torch's loader does.

Runs in the main process. The graph's one source reads what is dealt (``context.supply``); whoever uses this decides
which entry goes to which worker, and when. A worker that dies is replaced, and its successor is dealt again what has
not come back as an item.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.context import BaseContext
from typing import Any

from reading_services._supervision.ledger import Hand
from reading_services._supervision.options import WorkerLimits
from reading_services._supervision.start_method import default_start_method, start_method
from reading_services._supervision.tuned import TunedSupervisor
from reading_services._transport.graph_image import GraphImage
from reading_services._transport.messages import Deal
from reading_services.multiprocessing import MultiProcessingReadingService
from torchpipe.errors import NotSerializableError
from torchpipe.execution.provider import ShardPosition
from torchpipe.execution.reading_service import EpochStart
from torchpipe.execution.shard import InitFn
from torchpipe.node.traits import DataPipe, node_name
from torchpipe.state import SnapshotPolicy
from torchpipe.state.pickling import dumps
from torchpipe.stats import Budget

__all__ = ["DealingWorkers", "TimedReadingService", "WorkerLimits", "default_start_method", "image_for"]

_MOST_LEVELS = 8  # of attributes of attributes, in search of the one that cannot be sent


class DealingWorkers(TunedSupervisor):
    """``num_workers`` processes over ``graph``, a node without inputs, which are dealt what to make items of.

    ``steps``: of the node, how many note for themselves what they take.

    Under fork, processes get the graph as it is when they are started; else it is pickled, here and now.

    Raises: NotSerializableError, naming the attribute that cannot be pickled.
    """

    def __init__(
        self,
        graph: DataPipe,
        num_workers: int,
        context: BaseContext | str | None,
        *,
        init_fn: InitFn | None,
        limits: WorkerLimits,
        policy: Callable[[], SnapshotPolicy] = SnapshotPolicy,
        steps: int = 1,
        budget: Budget | None = None,
    ) -> None:
        context = start_method(context, on_device=context is None)
        image = image_for(context, graph, init_fn, policy)
        names = dict(enumerate([node_name(graph)] * max(1, steps)))
        super().__init__(
            num_workers=num_workers, budget=budget, context=context, graph=image, node_names=names, limits=limits
        )

    @property
    def processes(self) -> list[Any]:
        """The ``multiprocessing`` processes that run just now, in the order of their numbers."""
        return [worker.process for worker in self._pool]

    def begin(
        self,
        start: EpochStart,
        positions: list[ShardPosition],
        *,
        stateless: bool,
        again: Sequence[Sequence[Any]] | None = None,
    ) -> None:
        """Begin an epoch. ``stateless``: does an item depend on its entry alone? ``again``: what each cursor skips."""
        hands = {
            item.lane: Hand.begin(item, stateless, [dumps(entry) for entry in (again[item.lane] if again else ())])
            for item in positions
        }
        self.begin_epoch(start, positions, hands)

    def deal(self, lane: int, entries: Sequence[Any], *, over: bool = False) -> None:
        """Let ``lane`` make an item of each of ``entries``, after those before; ``over``: there are no more.

        Raises: whatever pickling one raises, before any is dealt.
        """
        data = [dumps(entry) for entry in entries]
        with self._calls, self._lock:
            self._ledgers[lane].deal(data, over)
            number = self._worker_of(self._ledgers[lane].shard)
            if number not in self._plans:  # else it gets all of them when it begins
                self._pool.send(number, Deal.of(self._generation, lane, data, over))

    def outstanding(self, lane: int) -> int:
        """How many entries have been dealt to ``lane`` whose items have not arrived."""
        return self._ledgers[lane].outstanding

    def end_epoch(self) -> None:
        """Let the workers stop; they stay. Idempotent. After a call that was cut short, they end instead."""
        if self.usable:
            super().end_epoch()
        else:
            self.close()

    def close(self) -> None:
        super().close()
        self._graph.close()


class TimedReadingService(MultiProcessingReadingService):
    """``MultiProcessingReadingService`` as torch's loader wants it: with a limit to each wait, and forked as it is."""

    def __init__(
        self, num_workers: int, context: BaseContext | str | None, *, wait_s: float | None, **more: Any
    ) -> None:
        super().__init__(num_workers, context, **more)
        self._wait_s = wait_s
        self._limits = replace(self._limits, batches=True)

    @property
    def processes(self) -> list[Any]:
        """The ``multiprocessing`` processes that run just now."""
        return [] if self._supervisor is None else [worker.process for worker in self._supervisor._pool]

    @property
    def usable(self) -> bool:
        """May another epoch begin? After a call that was cut short, with new processes."""
        return True

    def close(self) -> None:
        """End all processes. Idempotent."""
        self.finalize()

    def _make_images(self) -> None:
        if self._context.get_start_method() != "fork" or self.plan.dispatch is not None:
            super()._make_images()
        else:
            parts = (self._graphs.branches, self._init_fn, self._reset_fn, self._policy)
            self._graph = GraphImage.inherited(*parts)


def image_for(
    context: BaseContext, graph: DataPipe, init_fn: InitFn | None, policy: Callable[[], SnapshotPolicy]
) -> GraphImage:
    """What processes of this start method are given. Raises: NotSerializableError, naming the attribute."""
    parts = ((graph,), init_fn, None, policy)
    if context.get_start_method() == "fork":
        return GraphImage.inherited(*parts)
    try:
        return GraphImage.of(*parts)
    except Exception as error:
        raise NotSerializableError(_culprit(graph, init_fn, error)) from error


def _culprit(graph: DataPipe, init_fn: InitFn | None, error: Exception) -> str:
    for name, value in [*vars(graph).items(), ("worker_init_fn", init_fn)]:
        failure = _failure(value)
        if failure is None:
            continue
        path, owner = [name], value
        while len(path) < _MOST_LEVELS:
            found = ((key, part, _failure(part)) for key, part in _attributes(value))
            key, part, inner = next((item for item in found if item[2] is not None), ("", None, None))
            if inner is None:
                break
            path, owner, value, failure = [*path, key], value, part, inner
        if path[0] == "fetch" and len(path) > 1:  # users know what is in it
            path = path[1:]
        if path[:2] == ["worker_init_fn", "user_fn"]:
            del path[1]
        what = f"its {path[0]}"
        if len(path) > 1:
            what = f"attribute {path[-1]!r} of its {'.'.join(path[:-1])} ({type(owner).__name__})"
        return (
            f"the loader cannot be sent to a worker process: {what} cannot be pickled ({type(failure).__name__}: "
            f"{failure}). Open files, locks, connections and the like when they are first used, or in worker_init_fn; "
            'multiprocessing_context="fork" needs no pickling'
        )
    return f"the loader cannot be sent to a worker process: {error}"


def _attributes(value: Any) -> list[tuple[str, Any]]:
    return list(getattr(value, "__dict__", {}).items())


def _failure(value: Any) -> Exception | None:
    try:
        GraphImage.of(value).close()
    except Exception as error:
        return error
    return None
