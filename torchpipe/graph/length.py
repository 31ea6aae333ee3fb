"""The number of items of an epoch, where the nodes know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.graph.plan import Plan
from torchpipe.graph.rewrite import replace_nodes, rewrite
from torchpipe.node.traits import DataPipe, Division, divides, division, with_inputs

__all__ = ["total_length"]


class _Sized(TorchIterDataPipe[Any]):
    """Stands for the merged shards, or for a shard's part of a stream: known by its length alone."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


def total_length(
    planned: Plan, num_shards: int, rank: int = 0, world_size: int = 1, *, shards: Iterable[int] | None = None
) -> int:
    """The number of items that the ``num_shards`` shards of ``rank``, or those of them given, deliver together.

    Raises: TypeError where it is not known.
    """
    try:
        totals = [0 for _ in planned.cuts]
        for shard in range(num_shards) if shards is None else shards:
            shares = {Division.RANKS: (world_size, rank), Division.SHARDS: (num_shards, shard)}
            shares[Division.BOTH] = (world_size * num_shards, rank + world_size * shard)
            for branch, cut in enumerate(planned.cuts):
                totals[branch] += len(_for_shard(cut, shares))
        sized = {id(cut): _Sized(total) for cut, total in zip(planned.cuts, totals)}  # type: ignore[abstract]
        return len(replace_nodes(planned.root, sized))
    except TypeError as error:
        raise TypeError(
            f"the length of an epoch is not known ({error}). Count the items while iterating, or tell the trainer how "
            "many steps to take"
        ) from error


def _for_shard(root: DataPipe, shares: dict[Division, tuple[int, int]]) -> DataPipe:
    """The graph with its sharding points told, on private copies, which part they keep."""

    def divide(node: DataPipe) -> DataPipe:
        if not divides(node):
            return node
        if not callable(getattr(type(node), "apply_sharding", None)):
            parts, part = shares[division(node)]
            return _Sized(len(range(part, len(node), parts)))  # type: ignore[abstract]
        private = with_inputs(node, lambda item: item, private=True)
        group = getattr(node, "sharding_group_filter", None)
        private.apply_sharding(*shares[division(node)], *([] if group is None else [group]))
        return private  # type: ignore[no-any-return]

    return rewrite(root, divide)
