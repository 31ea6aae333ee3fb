"""``loader.rows``, ``loader.item_at``, ``loader.mixtures`` and ``loader.next_change``. Runs in the user's process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.loader.observing import AskedSteps
from torchpipe.node.validate import check_count
from torchpipe.observe.steps import datasets, graphs
from torchpipe.observe.steps.rows import Mixture, Rows, mixtures_of

__all__ = ["item_at", "mixtures", "next_change", "rows_of"]


def rows_of(loader: Any, steps: AskedSteps, keep: Sequence[str], epoch: int | None) -> Rows:
    """The rows of steps: of a graph, the items of its sources; of a dataset, the indices of its samples."""
    position = loader._position_beside()
    return _way(loader).rows_of(loader, position, steps, list(keep), epoch)  # type: ignore[no-any-return]


def item_at(loader: Any, step: int, epoch: int | None) -> Any:
    """Made again, by the same functions."""
    position = loader._position_beside()
    return _way(loader).item_at(loader, position, check_count("step", step, at_least=0), epoch)


def _way(loader: Any) -> Any:
    return graphs if isinstance(loader, DataLoader2) else datasets


def mixtures(loader: DataLoader2[Any]) -> list[Mixture]:
    """The mixtures of all ``mix`` nodes of the graph."""
    return mixtures_of(loader.datapipe, loader.reading_service, loader._position_beside())


def next_change(loader: DataLoader2[Any]) -> int:
    """The largest of all."""
    found = mixtures(loader)
    if not found:
        raise ValueError("the graph has no mix(): there are no weights that might change")
    return max(mixture.next_change for mixture in found)
