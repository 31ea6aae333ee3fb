"""Say where in the pipeline a user's exception came from."""

from __future__ import annotations

from torchpipe.errors import add_note
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import node_name

__all__ = ["add_note", "add_position", "failing_node"]


def failing_node(error: BaseException) -> str | None:
    """The name of the node whose code, or whose function, raised ``error``: the innermost one in its traceback."""
    if isinstance(error.__cause__, StopIteration):  # out of a function: the generator around it made this error of it
        return failing_node(error.__cause__)
    name: str | None = None
    traceback = error.__traceback__
    while traceback is not None:
        owner = traceback.tb_frame.f_locals.get("self")
        if isinstance(owner, NodeIterator):
            name = node_name(owner.node)
        traceback = traceback.tb_next
    return name


def add_position(error: BaseException, item: str) -> None:
    """Add a note to ``error``: the node, and which item was being made."""
    add_note(error, f"torchpipe: raised in {failing_node(error) or 'the pipeline'} for {item}")
