"""Items that packing nodes drop because of their size: counted, and warned of once."""

from __future__ import annotations

import logging
from typing import Any

from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import node_name

__all__ = ["note_dropped"]

_log = logging.getLogger("torchpipe")


def note_dropped(iterator: NodeIterator[Any], before: int, why: str) -> int:
    """Note and count an item that ``iterator`` leaves out, after ``before`` others; a warning tells of the first."""
    context = iterator.context
    if not before and not context.shared.restoring:
        _log.warning(
            "%s leaves out an item, %s; the state counts further ones as 'dropped'", node_name(iterator.node), why
        )
    if context.host.trace is not None:
        context.host.trace.left_out(iterator.pass_engine.number_to_trace(iterator.untimed))
    return before + 1
