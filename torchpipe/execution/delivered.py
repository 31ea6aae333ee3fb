"""Makes the main section's state count only what came out of it whole, also after an exception in its nodes.

Runs in the consumer's process.

A node that raises has pulled its input already, and perhaps changed its own buffers: nothing below the exception says
any more where the last whole item was. So a cursor is kept at the top of the section, and used after an exception only.
Stages that count an item when they hand it out (``exact_after_error``) need none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchpipe.ahead.feed import Snapshots
from torchpipe.node.context import Context
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import DataPipe, node_name
from torchpipe.state import Cursor, encode

__all__ = ["exact_after_error"]


def exact_after_error(node: DataPipe, context: Context, inner: NodeIterator[Any]) -> NodeIterator[Any]:
    """``inner``, the pass over ``node``, such that its state stays true after any exception, Ctrl-C included."""
    return inner if inner.exact_after_error else _Delivered(node, context, inner)


class _Delivered(NodeIterator[Any]):
    """Hands on the items of ``inner``. State: as that of ``inner``; after an exception, a cursor."""

    exact_after_error = True

    def __init__(self, node: DataPipe, context: Context, inner: NodeIterator[Any]) -> None:
        super().__init__(node, context)
        self.inputs = (inner,)
        self._snapshots = Snapshots(inner, context.policy(), node_name(node))
        self._cursor = Cursor()
        self._pulling = False  # stays True when a pull ended in an exception

    def run(self) -> Iterator[Any]:
        stream = self.source.items()
        while True:
            self._pulling = True
            try:
                item = next(stream)
            except StopIteration:
                self._pulling = False
                return
            self._pulling = False
            yield item
            # Asked for the next one, so that one arrived.
            self._cursor = self._cursor.after(1, self._snapshots.after_item())

    def state_dict(self) -> dict[str, Any]:
        return self._cursor.to_state() if self._pulling else self.source.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.source.load_state_dict(state)
        self._cursor = Cursor.from_state(state) or Cursor(encode(state))
