"""Say where in the pipeline a user's exception came from. Imports ``iterator`` and ``nodes``."""

from __future__ import annotations

from torchpipe.iterator import NodeIterator
from torchpipe.nodes import node_name

__all__ = ["add_position", "failing_node"]


def failing_node(error: BaseException) -> str | None:
    """The name of the node whose code, or whose function, raised ``error``: the innermost one in its traceback."""
    name: str | None = None
    traceback = error.__traceback__
    while traceback is not None:
        owner = traceback.tb_frame.f_locals.get("self")
        if isinstance(owner, NodeIterator):
            name = node_name(owner.node)
        traceback = traceback.tb_next
    return name


def add_position(error: BaseException, *, shard: int, num_shards: int, index: int, epoch: int) -> None:
    """Add a note to ``error``: the node, and which item of which shard was being made."""
    node = failing_node(error) or "the pipeline"
    error.add_note(f"torchpipe: raised in {node} for item {index} of shard {shard} of {num_shards}, epoch {epoch}")
