"""``torchpipe.profile``: what each node of a graph could do, alone and up to it, and what the loop could do.

Runs in the user's process, which does all of it itself: what so many workers could do follows from that.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from torchpipe.errors import GraphError
from torchpipe.execution.reading_service import InProcessReadingService
from torchpipe.graph import plan
from torchpipe.graph.draw import Row, rows_of_plan
from torchpipe.iter import IterableWrapper
from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.loader.run import streamed, way_out
from torchpipe.machine import available_cores
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.traits import DataPipe, inputs_of, is_node, with_inputs
from torchpipe.node.validate import check_count
from torchpipe.observe.outlook import Outlook
from torchpipe.observe.profiles import NodeProfile, Profile, Rate
from torchpipe.observe.text import format_count
from torchpipe.stats.model import LoaderStats

__all__ = ["profile"]

_KEPT = 64  # items of a node that those after it are given, again and again


def profile(
    graph: Any,
    *,
    seconds: float = 0.5,
    workers: Sequence[int] = (1, 2, 4, 8),
    step: Callable[[Any], object] | None = None,
    seed: int = 0,
) -> Profile:
    """Run the graph in this process, node by node, to find what limits it, and what so many workers could do.

    Each node is run for ``seconds`` with all before it, and as long alone: reading the first 64 items of its inputs
    again and again, as if they were free. ``step``, what your loop does with a batch, is run on 64 cached batches.
    Nothing is left changed: no position, no random state of yours. Functions with side effects have these, though.

    ``graph``: a node, or a ``DataLoader2``, whose graph is taken. A node that takes longer than ``seconds`` for its
    first items is run until two have come.

    Raises: TypeError and ValueError for arguments that cannot be right; what the graph raises as a whole. What a single
    node raises when it is run alone is told in its row (``error``): one that reads its input's files, say.
    """
    root = _graph_of(graph)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise ValueError(f"seconds, the time for each node, must be a positive number, got {seconds!r}")
    counts = [check_count("workers", count, at_least=1) for count in workers]
    if step is not None and not callable(step):
        raise TypeError(f"step must be a function of a batch, got {step!r}: profile(graph, step=lambda batch: ...)")
    whole = _Run.of(root, seconds, seed, measure=True)
    if whole.error is not None:
        raise whole.error
    assert whole.stats is not None
    rows = [row for row in rows_of_plan(plan(root)) if row.node is not None]
    nodes = _node_profiles(rows, whole, seconds, seed, counts)
    loop_per_s = None if step is None or not whole.kept else _stepped(step, whole.kept, seconds)
    loop_s = 0.0 if loop_per_s is None else 1 / loop_per_s
    outlook = _outlook(whole, loop_s)
    slowest = _slowest(nodes, whole.stats)
    found = Profile(
        sentence="",
        slowest=None if slowest is None else slowest.number,
        items_per_s=whole.rate,
        loop_per_s=loop_per_s,
        keeps_up=None if outlook is None or loop_per_s is None else outlook.keeps_up(),
        predictions=() if outlook is None else outlook.predictions(counts),
        nodes=tuple(nodes),
        cores=available_cores(),
    )
    return replace(found, sentence=_sentence(found, slowest))


def _graph_of(graph: Any) -> Any:
    if isinstance(graph, DataLoader2):
        return graph.datapipe
    if isinstance(graph, TorchDataLoader):
        raise TypeError(
            f"profile takes a graph apart, and a {type(graph).__name__} has none: with loader.measuring = True, its "
            "stats() say what each step takes"
        )
    if not is_node(graph):
        raise TypeError(f"profile needs a datapipe or a DataLoader2, got {graph!r}: {way_out(graph)}")
    return streamed(graph)


class _AsWorkersDo(InProcessReadingService):
    """Makes quick items several at a time: what is done once for each chunk is no part of an item."""

    _local_chunk = (4096, 2e-3)


@dataclass
class _Run:
    """A node run in this process: items a second once the first has come, CPU seconds to a second, the first items."""

    rate: float | None = None
    cpu_share: float | None = None
    kept: list[Any] = field(default_factory=list)
    begun: LoaderStats | None = None  # when the first item had come: what begins a pass (a buffer is filled) is no rate
    stats: LoaderStats | None = None
    error: Exception | None = None

    @classmethod
    def of(cls, node: DataPipe, seconds: float, seed: int, *, measure: bool = False) -> _Run:
        """Epoch after epoch, until the time is over and two items have come; or one epoch, if that has fewer."""
        run = cls()
        try:
            with DataLoader2(node, reading_service=_AsWorkersDo()) as loader:
                loader.measuring = measure
                loader.seed(seed)
                began = first = time.perf_counter()
                cpu_s, items = time.process_time(), 0
                until = began + seconds
                while not items or (time.perf_counter() < until and items > 1):
                    before = items
                    for item in loader:
                        items += 1
                        if items == 1:
                            run.begun = loader.stats() if measure else None
                            first, cpu_s = time.perf_counter(), time.process_time()
                        if len(run.kept) < _KEPT:
                            run.kept.append(item)
                        if items > 1 and time.perf_counter() >= until:
                            break
                    if items == before:
                        break
                run.stats = loader.stats()
            spent_s = time.perf_counter() - (first if items > 1 else began)
            if items:
                run.rate = max(1, items - 1) / max(1e-9, spent_s)
                run.cpu_share = (time.process_time() - cpu_s) / max(1e-9, spent_s)
        except Exception as error:  # the node's own, of which the whole graph's is raised and others are told
            run.error = error
        return run


class _Again(Sequence[Any]):
    """``items`` over and over, ``length`` in all: what reads all of its input comes to an end."""

    def __init__(self, items: list[Any], length: int) -> None:
        self._items, self._length = items, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._length:
            raise IndexError(index)
        return self._items[index % len(self._items)]


def _node_profiles(rows: list[Row], whole: _Run, seconds: float, seed: int, counts: list[int]) -> list[NodeProfile]:
    assert whole.stats is not None
    shares = _shares(whole.begun, whole.stats)
    runs: dict[int, _Run] = {}
    nodes = []
    for row in rows:
        assert row.node is not None
        last = row.node is rows[-1].node
        run = runs[id(row.node)] = whole if last else _Run.of(row.node, seconds, seed)
        single = run if not row.inputs else _run_by_itself(row.node, runs, seconds, seed)
        errors = {
            str(each.error).splitlines()[0] for each in (run, single) if each.error is not None and str(each.error)
        }
        nodes.append(
            NodeProfile(
                number=row.number,
                name=row.name,
                section=row.section,
                repeated=row.repeated,
                prefix_per_s=run.rate,
                alone_per_s=single.rate,
                cpu_share=single.cpu_share,
                share=shares.get(row.number),
                rates=tuple(Rate(workers=count, items_per_s=_with(single, row, count)) for count in counts)
                if single.rate
                else (),
                error="; ".join(sorted(errors)),
            )
        )
    return nodes


def _run_by_itself(node: DataPipe, runs: dict[int, _Run], seconds: float, seed: int) -> _Run:
    given: dict[int, DataPipe] = {}
    for item in inputs_of(node):
        run = runs.get(id(item), _Run())
        if not run.kept or not isinstance(item, IterDataPipe):
            return _Run(error=GraphError("it cannot be run alone: what it reads is no stream of items, or has none"))
        length = _KEPT + int(seconds * (run.rate or 0.0))  # what that node makes in the time
        given[id(item)] = IterableWrapper(_Again(run.kept, length), deepcopy=False)
    return _Run.of(with_inputs(node, lambda item: given[id(item)]), seconds, seed)


def _outlook(whole: _Run, loop_s: float) -> Outlook | None:
    if whole.stats is None or whole.rate is None:
        return None
    item_s = 1 / whole.rate
    return Outlook.foretold(whole.stats, item_s=item_s, cpu_s=item_s * (whole.cpu_share or 0.0), loop_s=loop_s)


def _shares(begun: LoaderStats | None, stats: LoaderStats) -> dict[int, float]:
    """The share of each node, by its number, in the time of all since ``begun``, or in all if that time is zero."""
    took_s = {node.number: node.self_s for node in stats.nodes if node.self_s is not None}
    before_s = {} if begun is None else {node.number: node.self_s or 0.0 for node in begun.nodes}
    since_s = {number: max(0.0, seconds - before_s.get(number, 0.0)) for number, seconds in took_s.items()}
    took_s = since_s if any(since_s.values()) else took_s
    together_s = sum(took_s.values())
    return {number: seconds / together_s for number, seconds in took_s.items()} if together_s else {}


def _slowest(nodes: Sequence[NodeProfile], stats: LoaderStats) -> NodeProfile | None:
    """The node that takes the most of the whole run and also, run alone, for as many items; None if they are two."""
    items = {node.number: node.items or 0 for node in stats.nodes}
    alone_s = {node.number: items.get(node.number, 0) / node.alone_per_s for node in nodes if node.alone_per_s}
    most = max((node for node in nodes if node.share), key=lambda node: node.share or 0.0, default=None)
    return most if most is not None and alone_s.get(most.number, math.inf) >= max(alone_s.values(), default=0) else None


def _with(single: _Run, row: Row, workers: int) -> float:
    """Items a second of a node with so many workers."""
    assert single.rate is not None
    if row.section != "shard" or row.repeated:
        return single.rate
    return single.rate * max(1.0, min(float(workers), available_cores() / max(0.01, single.cpu_share or 0.0)))


def _stepped(step: Callable[[Any], object], batches: list[Any], seconds: float) -> float:
    """Batches a second that ``step`` takes, after it has taken one."""
    cycle = itertools.cycle(batches)
    step(next(cycle))
    began, taken = time.perf_counter(), 0
    while not taken or time.perf_counter() < began + seconds:
        step(next(cycle))
        taken += 1
    return taken / max(1e-9, time.perf_counter() - began)


def _sentence(found: Profile, slowest: NodeProfile | None) -> str:
    if found.items_per_s is None:
        return "The graph has no items."
    text = f"One process makes {format_count(found.items_per_s)} items/s"
    if slowest is None:
        text += "; no step stands out"
    else:
        text += f"; the slowest step is `{slowest.name}`, {100 * (slowest.share or 0):.0f} % of that time"
    if found.loop_per_s is None:
        return text + "."
    text += f". Your step could take {format_count(found.loop_per_s)}/s"
    if found.keeps_up is None:
        return text + ", which no number of workers reaches here."
    return text + f": {found.keeps_up} worker{'s' if found.keeps_up > 1 else ''} would keep up."
