"""Say where in the pipeline a user's exception came from."""

from __future__ import annotations

import traceback

from torchpipe.errors import add_note
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import node_name

__all__ = ["add_note", "add_position", "failing_node"]


def failing_node(error: BaseException) -> str | None:
    """The name of the node whose code, or whose function, raised ``error``: the innermost one in its traceback.

    ``error`` is being handled, by who is no node.
    """
    trace = error.__traceback__
    entry = None if trace is None else trace.tb_next  # of a frame that is at work, f_locals would keep the error
    if isinstance(error.__cause__, StopIteration):  # out of a function: the generator around it made this error of it
        entry = error.__cause__.__traceback__
    name: str | None = None
    while entry is not None:
        owner = entry.tb_frame.f_locals.get("self")
        if isinstance(owner, NodeIterator):
            name = node_name(owner.node)
        entry = entry.tb_next
    return name


def _ended_by(error: BaseException) -> str:
    """The function whose StopIteration Python has made ``error`` of; or ""."""
    if not isinstance(error, RuntimeError) or not isinstance(error.__cause__, StopIteration):
        return ""
    return "".join(frame.name for frame in traceback.extract_tb(error.__cause__.__traceback__)[-1:])


def add_position(error: BaseException, item: str) -> None:
    """Add a note to ``error``: the node, and which item was being made."""
    function = _ended_by(error)
    if function:
        add_note(error, f"torchpipe: {function}() raised StopIteration, which is no end: next() without a default does")
    add_note(error, f"torchpipe: raised in {failing_node(error) or 'the pipeline'} for {item}")
