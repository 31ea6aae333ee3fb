"""How many items an epoch has, where the nodes know. Imports ``graph.plan`` and ``nodes``."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterDataPipe as TorchIterDataPipe

from torchpipe.graph.plan import plan
from torchpipe.graph.rewrite import replace_node, rewrite
from torchpipe.nodes import DataPipe, with_inputs

__all__ = ["total_length"]


class _Sized(TorchIterDataPipe[Any]):
    """Stands for the merged shards: known by its length alone."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


def total_length(root: DataPipe, num_shards: int) -> int:
    """The number of items that ``num_shards`` shards deliver together. Raises: TypeError where it is not known."""
    split = plan(root)
    try:
        total = sum(len(_for_shard(split.cut, num_shards, shard)) for shard in range(num_shards))
        return len(replace_node(root, split.cut, _Sized(total)))  # type: ignore[abstract]
    except TypeError as error:
        raise TypeError(
            f"the length of an epoch is not known ({error}). Count the items while iterating, or tell the trainer how "
            "many steps to take"
        ) from error


def _for_shard(root: DataPipe, num_shards: int, shard: int) -> DataPipe:
    """The graph with its sharding points told, on private copies, which part they keep."""

    def divide(node: DataPipe) -> DataPipe:
        apply_sharding = getattr(type(node), "apply_sharding", None)
        if apply_sharding is None:
            return node
        private = with_inputs(node, lambda item: item, private=True)
        group = getattr(node, "sharding_group_filter", None)
        private.apply_sharding(num_shards, shard, *([] if group is None else [group]))
        return private  # type: ignore[no-any-return]

    return rewrite(root, divide)
