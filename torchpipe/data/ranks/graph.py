"""Ranks of ``torch.distributed`` that read the same graph of nodes: it is divided among them, as by torch's loader.

Runs in the user's process. Every rank begins its epochs as often as the others and in the same order, since they agree
on each one's seed. Other datasets are divided by their sampler, or divide themselves.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.errors import ReplicatedSourceWarning
from torchpipe.execution.ranks import DataRanks, RankGroup, Talk, data_ranks
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.traits import Division, division, node_name, walk
from torchpipe.node.user_warnings import warn_user

if TYPE_CHECKING:
    from torchpipe.data.loader import DataLoader

__all__ = ["agreed", "divides_itself", "group_of", "rank_and_ranks"]

_TIMEOUT_S = 1800.0


def rank_and_ranks(dataset: Any) -> tuple[int, int]:
    """(rank, how many there are), where they divide ``dataset``: a graph of nodes. Else (0, 1), with a warning."""
    if not isinstance(dataset, TorchIterDataPipe) or not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    ranks = dist.get_rank(), dist.get_world_size()
    if ranks[1] > 1 and not isinstance(dataset, IterDataPipe) and Division.RANKS not in _among(dataset):
        _warn_of_replicas(dataset, f"{ranks[1]} ranks")
        return 0, 1
    return ranks  # what is not divided of torchpipe's own is refused


def divides_itself(dataset: Any, workers: int) -> bool:
    """True for a graph of torch's that nothing in it divides; by ``get_worker_info()``, it still may divide itself."""
    itself = not isinstance(dataset, IterDataPipe) and Division.SHARDS not in _among(dataset)
    if itself and workers > 1:
        _warn_of_replicas(dataset, f"{workers} workers")
    return itself


def agreed(loader: DataLoader[Any], seed: int, world_size: int) -> int:
    """The first rank's ``seed``: every rank calls this. Raises: RankError if one does not."""
    if world_size == 1:
        return seed
    return group_of(loader, data_ranks(True, "a graph on several ranks")).numbers(Talk.BEGIN, [seed])[0][0]


def group_of(loader: DataLoader[Any], ranks: DataRanks) -> RankGroup:
    """The ranks with which ``loader`` begins its epochs: one group, made by all of them when they begin the first."""
    if loader._ranks is None:
        loader._ranks = RankGroup(ranks, loader.timeout or _TIMEOUT_S)
        weakref.finalize(loader, loader._ranks.close).atexit = False
    return loader._ranks


def _among(graph: Any) -> Division:
    """Among whom the sharding points of ``graph`` divide it."""
    found = Division.NONE
    for node in walk(graph):
        found |= division(node)
    return found


def _warn_of_replicas(dataset: Any, whom: str) -> None:
    warn_user(
        f"each of {whom} yields all items of {node_name(dataset)}, as with torch's loader, unless a node of it divides "
        "them by get_worker_info() or by rank: no sharding point is in the graph. Put .sharding_filter() behind the "
        "source",
        ReplicatedSourceWarning,
    )
