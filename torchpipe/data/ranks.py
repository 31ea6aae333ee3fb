"""Ranks of ``torch.distributed`` that read the same graph of nodes: it is divided among them, as by torch's loader.

Runs in the user's process. Every rank begins its epochs as often as the others and in the same order, since they agree
on each one's seed. Other datasets are divided by their sampler, or divide themselves.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import IterDataPipe as TorchIterDataPipe

from torchpipe.errors import ReplicatedSourceWarning
from torchpipe.node.announce import warn_user
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.traits import Division, division, node_name, walk

__all__ = ["agreed", "divides_itself", "ranks_of"]

_group: tuple[Any, Any] = (None, None)  # the default group, and one in which its ranks talk without an accelerator


def ranks_of(dataset: Any) -> tuple[int, int]:
    """(rank, how many there are), where they divide ``dataset``: a graph of nodes. Else (0, 1), with a warning."""
    if not isinstance(dataset, TorchIterDataPipe) or not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    ranks = dist.get_rank(), dist.get_world_size()
    if ranks[1] > 1 and not isinstance(dataset, IterDataPipe) and Division.RANKS not in _among(dataset):
        _warn_of_replicas(dataset, f"{ranks[1]} ranks")
        return 0, 1
    return ranks  # what is not divided of torchpipe's own is refused


def divides_itself(dataset: Any, workers: int) -> bool:
    """Is it a graph of torch's that nothing in it divides? By ``get_worker_info()``, it still may divide itself."""
    itself = not isinstance(dataset, IterDataPipe) and Division.SHARDS not in _among(dataset)
    if itself and workers > 1:
        _warn_of_replicas(dataset, f"{workers} workers")
    return itself


def agreed(seed: int, world_size: int) -> int:
    """The first rank's ``seed``: every rank calls this."""
    global _group
    if world_size == 1:
        return seed
    if _group[0] is not dist.group.WORLD:
        _group = (dist.group.WORLD, dist.new_group(backend="gloo"))
    told = torch.tensor(seed)
    dist.broadcast(told, src=0, group=_group[1])
    return int(told)


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
