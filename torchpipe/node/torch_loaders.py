"""The messages of torch's loaders to a graph that they run: its passes need them to be parts of one stream.

Runs in the process, or worker, of such a loader: torch's ``DataLoader``, torchdata's ``StatefulDataLoader``.

For each epoch these draw one seed, the same for all workers and ranks, and call ``set_seed`` of each node that has it;
in workers, and for ranks, they call ``apply_sharding``. A sharding point that has kept both knows the stream of all,
and which part of it a pass is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import get_worker_info

from torchpipe.node.traits import DataPipe, divides, is_node, walk
from torchpipe.randomness.seeds import derive_seed

__all__ = ["by_torch", "common_seed"]


def common_seed(info: Any) -> int:
    """The seed that a loader drew for all of its workers, of which ``info`` (``get_worker_info()``) describes one."""
    return int(info.seed - info.id)


def by_torch(nodes: Sequence[DataPipe]) -> dict[str, Any] | None:
    """The seed, and the part of the stream, as a context has them, that a loader of torch's told these ``nodes``, a
    graph; None if it told none, or nothing divides it.

    A sharding point of the user's need not keep a seed. In workers whose dataset is a graph, the seed is then made of
    those that other nodes have kept, or is that of the workers, which persistent ones have for all epochs.
    """
    points = [node for node in nodes if divides(node)]
    if not points:
        return None
    info = get_worker_info()
    run: Any = None if info is None else info.dataset
    runs_graph = is_node(run) and any(item is nodes[-1] for item in walk(run))
    seed = next(_kept_seeds(points), None)
    if seed is not None and info is None:  # in process a loader tells one before each epoch; another iter() is no part
        for node in points:
            if hasattr(node, "own_seed"):
                vars(node)["own_seed"] = None
    if seed is None and runs_graph:
        others = tuple(_kept_seeds(nodes))
        seed = derive_seed(*others) if others else common_seed(info)
    if seed is None:
        return None
    shares = (node.applied() for node in points if hasattr(node, "applied"))
    of_worker = (info.num_workers, info.id) if info is not None and runs_graph else (1, 0)
    parts, part = next((share for share in shares if share is not None), of_worker)
    return {"seed": seed, "shard": part, "num_shards": parts}


def _kept_seeds(nodes: Sequence[DataPipe]) -> Any:
    return (seed for node in nodes if type(seed := getattr(node, "own_seed", None)) is int)
