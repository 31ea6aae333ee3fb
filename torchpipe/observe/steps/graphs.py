"""Going to a step of an epoch in this process, beside the loader's own loop: for ``rows`` and ``item_at`` of a graph.

Runs in the user's process. Nothing of the loader moves, and no rank, worker or device is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from torchpipe.execution.epoch import EpochStart
from torchpipe.graph import plan
from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.loader.observing import AskedSteps
from torchpipe.loader.state import LoaderState
from torchpipe.node.traits import DataPipe, node_name, traits_of
from torchpipe.observe.steps.identities import Identities, batched_levels
from torchpipe.observe.steps.rows import Rows, rows_in, wanted_steps
from torchpipe.state.ranks import delivered_position

__all__ = ["item_at", "rows_of"]


def rows_of(
    loader: DataLoader2[Any], position: LoaderState, steps: AskedSteps, keep: Sequence[str], epoch: int | None
) -> Rows:
    """The samples of ``steps``: what the sources give for them, as far as no other node decides which items come.

    What stands for nodes has no state, so the epoch is gone through from its start; where all is made, from the
    position, if the steps are behind it.
    """
    wanted = wanted_steps(steps)
    identities = _identities(loader.datapipe)
    rows = partial(rows_in, keep=keep, levels=batched_levels(loader.datapipe))
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
