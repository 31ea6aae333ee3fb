"""The samples of an epoch's steps, the result of ``loader.rows``; and the draws of a ``mix``, by source, with the
number from which its weights may change. Runs in the user's process.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from torchpipe.compat.torch_datapipes import DataChunk
from torchpipe.errors import StateError
from torchpipe.execution.epoch import EpochStart
from torchpipe.execution.interface import ReadingServiceInterface
from torchpipe.iter import Mixer
from torchpipe.loader.observing import AskedSteps
from torchpipe.loader.state import LoaderState
from torchpipe.node.checksum import checksum_of
from torchpipe.node.fingerprint import describe_graph
from torchpipe.node.function_results import plain
from torchpipe.node.traits import DataPipe, traits_of, walk
from torchpipe.node.validate import check_count
from torchpipe.state.inspect import found_in

__all__ = ["Mixture", "Rows", "SourceCount", "StepRows", "last_of", "mixtures_of", "row_of", "rows_in", "wanted_steps"]

_IDS = ("id", "ids", "index", "key", "__key__", "__url__", "path", "url", "file", "offset")


class StepRows(NamedTuple):
    """The samples of one step of this rank: an entry for each, in the order in which they are in the batch."""

    step: int
    rows: list[Any]


class Rows(Iterator[StepRows]):
    """The samples of steps, computed one step after the other; close it, or use it up.

    ``first``: the step from which the epoch is gone through. ``makes``: True if items are made for it, and thrown away,
    by the nodes of ``made_by``; else only what says which samples they are is looked at.
    """

    def __init__(
        self,
        steps: Sequence[int] | None,
        first: int,
        begin: Callable[[ExitStack], Iterator[Any]],
        rows: Callable[[Any], list[Any]],
        made_by: Sequence[str] = (),
    ) -> None:
        self.first = first
        self.made_by = tuple(made_by)
        self.makes = bool(made_by)
        self._stack = ExitStack()
        self._stream = _found(steps, first, partial(begin, self._stack), rows)
        weakref.finalize(self, self._stack.close).atexit = False

    def __next__(self) -> StepRows:
        try:
            return next(self._stream)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of what it has opened. Idempotent."""
        self._stream = iter(())
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _found(
    steps: Sequence[int] | None, first: int, begin: Callable[[], Iterator[Any]], rows: Callable[[Any], list[Any]]
) -> Iterator[StepRows]:
    last = last_of(steps)
    if last is not None and last < first:
        return
    chosen = steps if steps is None or isinstance(steps, range) else frozenset(steps)
    for step, item in enumerate(begin(), first):
        if chosen is None or step in chosen:
            yield StepRows(step, rows(item))
        if step == last:
            return


def wanted_steps(steps: AskedSteps) -> Sequence[int] | None:
    """``steps``, in order, each once. Raises: TypeError, ValueError for what are no counts."""
    if steps is None or (isinstance(steps, range) and steps.step == 1 and steps.start >= 0):
        return steps
    several = isinstance(steps, Iterable) and getattr(steps, "ndim", 1) > 0  # a tensor without dimensions is a number
    given: Any = steps if several else [steps]
    return sorted({check_count("steps", step, at_least=0) for step in given})


def last_of(steps: Sequence[int] | None) -> int | None:
    """The last of ``steps``; None: they go to the end of the epoch. Of none: -1."""
    return None if steps is None else steps[-1] if len(steps) else -1


def rows_in(item: Any, keep: Sequence[str], levels: int | None) -> list[Any]:
    """The rows of an item that has so many ``levels`` of batches around its samples. None: nobody knows; lists are
    batches then.
    """
    if levels == 0:
        return [row_of(item, keep)]
    several = list | DataChunk if levels is None else Iterable
    if isinstance(item, several) and not isinstance(item, Mapping | str | bytes | torch.Tensor | np.ndarray):
        below = None if levels is None else levels - 1
        return [row for part in item for row in rows_in(part, keep, below)]
    rows = row_of(item, keep, columns=True)
    return list(rows) if isinstance(rows, list) else [rows]


def row_of(item: Any, keep: Sequence[str], *, columns: bool = False) -> Any:
    """The fields that identify a sample: those of ``keep``; else those that name one, or a plain sample itself.

    One field is its value, several are a dict; of ``columns``, a batch that was put together, a list for all samples.
    Raises: LookupError for a field that is not there.
    """
    if isinstance(item, Mapping):
        names = keep or [name for name in _IDS if name in item]
        missing = [name for name in names if name not in item]
        if missing:
            raise LookupError(f"the samples have no field {missing[0]!r}, they have {', '.join(map(str, item))[:200]}")
        if names:
            values = [_plain(item[name]) for name in names]
            if len(values) == 1:
                return values[0]
            if columns and all(isinstance(value, list) and len(value) == len(values[0]) for value in values):
                return [dict(zip(names, row)) for row in zip(*values)]
            return dict(zip(names, values))
    elif keep:
        raise LookupError(
            f"keep={list(keep)} names fields, and what is known of a sample without making it is "
            f"{_plain(item)!r:.80}, which has none: leave keep out"
        )
    return _plain(item)


def _plain(value: Any) -> Any:
    """The value as plain data; the class and a checksum of one that is not."""
    if isinstance(value, torch.Tensor | np.ndarray) and value.ndim < 2 and value.dtype not in (torch.bool, np.bool_):
        return value.tolist()
    found = plain(value)
    if found is None or isinstance(found, str | int | float | bool | bytes):
        return found
    if isinstance(found, list):
        return [_plain(part) for part in found]
    if isinstance(found, tuple):
        return tuple(_plain(part) for part in found)
    return f"{type(value).__name__} {checksum_of(value):08x}"


@dataclass(frozen=True, kw_only=True)
class SourceCount:
    """One input of a ``mix``: ``samples`` of it in this epoch, in all shards of this rank (None: a state of a former
    torchpipe did not count them). ``passes``: how often it has been read to its end, in the shard where that is most.
    """

    name: str
    samples: int | None
    passes: int


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """One ``mix``, ``number`` among the nodes of the graph's description. Weights may be others from ``next_change``
    samples (or tokens) on.
    """

    number: int
    sources: tuple[SourceCount, ...]
    next_change: int


def mixtures_of(graph: DataPipe, service: ReadingServiceInterface, position: LoaderState) -> list[Mixture]:
    """The mixture of each ``mix`` of the graph. Raises: StateError."""
    numbered = [node for node in walk(graph) if traits_of(node).alters_stream]
    mixers = [(number, node) for number, node in enumerate(numbered) if isinstance(node, Mixer)]
    if not mixers:
        return []
    states: dict[int, list[Mapping[str, Any]]] = {}
    if position.position is not None:
        identity: dict[str, Any] = position.identity
        start = EpochStart(**identity, delivered=position.delivered, state=position.position)
        states = found_in(service.exact_position(start, may_replay=True), describe_graph(graph)).states
        if position.delivered and not all(number in states for number, _ in mixers):
            raise StateError(
                "where mix() stands cannot be told here: branches of one pass meet in the graph, or a part of it has "
                "to be replayed from its start"
            )
    return [_mixture(number, node, states.get(number, [])) for number, node in mixers]


def _mixture(number: int, node: Mixer[Any], states: list[Mapping[str, Any]]) -> Mixture:
    inputs = range(len(node.datapipes))
    known = all(state.get("given") is not None for state in states)
    names = node.names or [f"input {place}" for place in inputs]
    sources = tuple(
        SourceCount(
            name=names[place],
            samples=sum(state["given"][place] for state in states) if known else None,
            passes=max((max(state["rounds"][place], int(state["ended"][place])) for state in states), default=0),
        )
        for place in inputs
    )
    # Of a mix that nothing was drawn from, any weights may be others
    begun = [state["count"] for state in states if state["items"]]
    return Mixture(number=number, sources=sources, next_change=int(max(begun)) + 1 if begun else 0)
