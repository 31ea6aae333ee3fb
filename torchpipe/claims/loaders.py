"""In what the two loaders differ for claims: whose items they have, and who makes them. Runs in the user's process."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterDataPipe

from torchpipe.compat.torch_private import is_iterable, unwrapped
from torchpipe.data.order.samplers import parts_of, ranks_of_sampler
from torchpipe.data.ranks.batches import RankedSampler
from torchpipe.data.ranks.graph import ranks_of
from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.loader.driven import Driven

__all__ = ["check_loader", "makes_items", "ranks_of_claims"]


def check_loader(loader: Any) -> None:
    """Raises: TypeError for another library's; ValueError for a loader whose items come in any order, and for one whose
    ranks wait for each other.
    """
    if not isinstance(loader, Driven):
        raise TypeError(f"claims are of a DataLoader or a DataLoader2 of torchpipe, got {loader!r:.200}")
    if not getattr(loader, "in_order", True):
        raise ValueError(
            "claims need in_order=True: with in_order=False items have no number that another run would give them"
        )
    if advice := _own_pace(loader):
        raise ValueError(
            "each rank takes claims at its own pace, and the ranks of this loader begin epochs together: " + advice
        )


def _own_pace(loader: Any) -> str:
    """The change that gives ranks a pace of their own, where they have none, as text."""
    if isinstance(loader, DataLoader2):
        together = loader.reading_service.agrees and loader.reading_service.world_size > 1
        return together * "use OrdinalReadingService(seed, rank, ranks) instead of DistributedReadingService"
    if isinstance(loader.sampler, RankedSampler) and loader.sampler.num_replicas > 1:
        return "give a sampler instead of distributed=, DistributedSampler(dataset, ranks, rank)"
    if is_iterable(loader) and isinstance(loader.dataset, IterDataPipe) and ranks_of(unwrapped(loader.dataset))[1] > 1:
        return "give the graph to DataLoader2 with OrdinalReadingService(seed, rank, ranks)"
    return ""


def makes_items(loader: Any) -> bool:
    """True if the loader's items are made in this process."""
    if isinstance(loader, DataLoader2):
        return loader.reading_service.figures().workers == 0
    return bool(loader.num_workers == 0)


def ranks_of_claims(loader: Any) -> list[int]:
    """[rank, ranks, batch size]: by which claims are counted."""
    if isinstance(loader, DataLoader2):
        return [loader.reading_service.rank, loader.reading_service.world_size, 1]
    ranks, rank = ranks_of_sampler([loader.dataset, *parts_of(loader.sampler), *parts_of(loader.batch_sampler)])
    return [rank, ranks, loader.batch_size or 0]
