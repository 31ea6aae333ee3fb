"""Going to a step of an epoch in this process, beside the loader's own loop: for ``rows`` and ``item_at`` of a graph.

Runs in the user's process. Nothing of the loader moves, and no rank, worker or device is asked.

**Samples without making them**: substitutes stand for nodes that make one item of one. A node that makes each item of
one item, and of nothing else, decides neither which items come nor when; nor do nodes before it that only choose by
number, change the order, or group. With such nodes passed through, the items of the sources come out: in the same
order, since nodes keep their numbers, from which their random streams come. A source that is read by index gives its
keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from torchpipe.execution.epoch import EpochStart
from torchpipe.graph import plan
from torchpipe.indexed.by_index import ByIndex
from torchpipe.iter import (
    Batcher,
    Collator,
    Concater,
    Cycler,
    DynamicBatcher,
    Enumerator,
    Grouper,
    LengthBucketer,
    Mapper,
    Mixer,
    OnError,
    Packer,
    ParallelMapper,
    RandomMapper,
    Repeater,
    UnBatcher,
    Zipper,
)
from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.loader.observing import AskedSteps
from torchpipe.loader.state import LoaderState
from torchpipe.node.context import Context
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import DataPipe, inputs_of, is_ours, node_name, pairs, traits_of, walk
from torchpipe.node.user_code import node_runs_users_code
from torchpipe.observe.steps.rows import Rows, rows_in, wanted_steps
from torchpipe.state.ranks import delivered_position

__all__ = ["Identities", "Substitutes", "item_at", "rows_of"]

Substitutes: TypeAlias = Mapping[int, Callable[[Context], NodeIterator[Any]]]
"""By the ids of nodes, what makes the iterator that stands for theirs."""

_OF_ONE = (Mapper, RandomMapper, ParallelMapper, Collator, Enumerator)  # what they make is left out
_GATHER = (Batcher, DynamicBatcher, Grouper, LengthBucketer, Packer)  # several samples into an item
_BY_NUMBER = (Batcher, Concater, Cycler, Repeater, Zipper)  # they look into no item


class _Through(NodeIterator[Any]):
    """Hands on the items of its input."""

    def run(self) -> Iterator[Any]:
        return self.source.items()


@dataclass(frozen=True)
class Identities:
    """``substitutes`` for nodes of a graph. ``made_by``: the nodes that items are made for, or by, all the same."""

    substitutes: Substitutes
    made_by: tuple[DataPipe, ...] = ()

    @classmethod
    def of(cls, root: DataPipe) -> Identities:
        """The identities of the graph that ends in ``root``. No node is left out if code of the user's decides which
        items come: it may draw from random states that go on from one function to the next.
        """
        found: dict[int, Callable[[Context], NodeIterator[Any]]] = {}
        waiting, seen, kept = [root], set[int](), []
        while waiting:
            node = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if type(node) in _OF_ONE:
                found[id(node)] = _passed_through(node)
                waiting += inputs_of(node)
            elif _gives_keys(node):
                found[id(node)] = _keys_of(node)
            elif _is_by_number(node):
                waiting += inputs_of(node)
            else:
                kept += walk(node)
        drawing = tuple(node for node in kept if node_runs_users_code(node))
        return cls({}, drawing) if drawing else cls(found)


def _batched_levels(node: DataPipe) -> int | None:
    """The number of levels of batches around the samples in an item of ``node``: 0: none; None: nobody can tell."""
    inputs = inputs_of(node)
    if not is_ours(type(node).__module__) or type(node) is UnBatcher:
        return None
    if not inputs:
        return 0
    found = {_batched_levels(item) for item in inputs}
    below = found.pop()
    if found or below is None or (below and pairs(node)):  # a tuple of batches
        return None
    return below + (type(node) in _GATHER)


def _is_by_number(node: DataPipe) -> bool:
    traits = traits_of(node)
    if not is_ours(type(node).__module__) or (type(node) is OnError and node.policy == "skip"):
        return False
    if not inputs_of(node):
        return not node_runs_users_code(node)
    by_number = type(node) in _BY_NUMBER or (type(node) is Mixer and node.by == "samples")
    if not traits.alters_stream:  # it moves items, or calls functions again, whose exceptions it may name
        return True
    return (by_number or traits.selects) and not traits.dispatches and not node_runs_users_code(node)


def _passed_through(node: DataPipe) -> Callable[[Context], NodeIterator[Any]]:
    return lambda context: _Through(node, context, *inputs_of(node))


def _gives_keys(node: DataPipe) -> bool:
    """True for a source that is read by index, and holds more than plain data."""
    by_index = is_ours(type(node).__module__) and getattr(node, "by_index", False) is True
    return by_index and (bool(inputs_of(node)) or node_runs_users_code(node))


def _keys_of(node: DataPipe) -> Callable[[Context], NodeIterator[Any]]:
    def begin(context: Context) -> NodeIterator[Any]:
        iterator = replace(context, substitutes={}).iterate(node)
        if isinstance(iterator, ByIndex):
            iterator.give_keys()
        return iterator

    return begin


def rows_of(
    loader: DataLoader2[Any], position: LoaderState, steps: AskedSteps, keep: Sequence[str], epoch: int | None
) -> Rows:
    """The samples of ``steps``: what the sources give for them, as far as no other node decides which items come.

    What stands for nodes has no state, so the epoch is gone through from its start; where all is made, from the
    position, if the steps are behind it.
    """
    wanted = wanted_steps(steps)
    identities = _identities(loader.datapipe)
    rows = partial(rows_in, keep=keep, levels=_batched_levels(loader.datapipe))
    if identities.substitutes:
        begin = partial(_stream, loader, position, position.epoch if epoch is None else epoch, 0, True)
        return Rows(wanted, 0, begin, rows)
    first = 0 if wanted is None else wanted[0] if len(wanted) else 0
    number, at = _start(position, epoch, first)
    begin = partial(_stream, loader, position, at, number, False)
    return Rows(wanted, number, begin, rows, [*map(node_name, identities.made_by)])


def item_at(loader: DataLoader2[Any], position: LoaderState, step: int, epoch: int | None) -> Any:
    """The item of ``step``. Raises: IndexError if the epoch has none; what making it, and those before it, raises."""
    number, at = _start(position, epoch, step)
    with ExitStack() as stack:
        for found, item in enumerate(_stream(loader, position, at, number, False, stack), number):
            if found == step:
                return item
    raise IndexError(f"epoch {at} has no step {step} on this rank: it ends before")


def _identities(graph: DataPipe) -> Identities:
    """The identities of the one section that runs in shards; none where nodes behind it alter the stream."""
    made = plan(graph)
    if len(made.cuts) > 1 or any(traits_of(node).alters_stream for node in made.main_nodes):
        return Identities({}, tuple(made.main_nodes))
    return Identities.of(made.cuts[0])


def _substitutes_of(graph: DataPipe) -> Any:
    return Identities.of(graph).substitutes


def _start(position: LoaderState, epoch: int | None, first: int) -> tuple[int, int]:
    """(the step from which to begin, of which epoch)."""
    behind = epoch in (None, position.epoch) and first >= position.delivered
    return (position.delivered if behind else 0), position.epoch if epoch is None else epoch


def _stream(
    loader: DataLoader2[Any], position: LoaderState, epoch: int, number: int, substitutes: bool, stack: ExitStack
) -> Iterator[Any]:
    identity: dict[str, Any] = position.identity | {"epoch": epoch}
    state = position.position if number and position.position is not None else None
    start = EpochStart(
        **identity,
        delivered=number,
        state=None if state is None else delivered_position(state),
        seeded=True,
    )
    stream = loader.reading_service.local_iteration(start, _substitutes_of if substitutes else None)
    stack.callback(stream.close)
    return stream.items()
