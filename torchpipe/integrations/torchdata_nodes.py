"""``torchdata.nodes`` both ways: ``LoaderNode``, a loader as one of its nodes; ``NodesReader``, its nodes as a source.

Needs torchdata 0.11 or newer. Runs where the loader, or the shard, does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

try:
    from torchdata.nodes import BaseNode
except ImportError as missing:
    raise ImportError(
        'torchdata.nodes is not there: pip install "torchdata>=0.11"', name="torchdata.nodes"
    ) from missing

from torchpipe.errors import StateError
from torchpipe.loader.dataloader2 import DataLoader2, DataLoader2Iterator
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator, refusing_misfits, stored_count
from torchpipe.node.validate import check_function

__all__ = ["LoaderNode", "NodesReader"]

T = TypeVar("T")

_END: Any = object()


class LoaderNode(BaseNode[T]):
    """The items of a ``DataLoader2``, under any reading service, as a node of ``torchdata.nodes``.

    Each ``reset()`` is the next epoch, unless nothing was taken of the one before; ``reset(state)`` has the rest of the
    epoch that the state was taken in, which is empty at its end. The state is the loader's: it counts what this node
    has handed out. Shut the loader down when you are done.

    Raises: TypeError for what is no DataLoader2.
    """

    def __init__(self, loader: DataLoader2[T]) -> None:
        super().__init__()
        if not isinstance(loader, DataLoader2):
            raise TypeError(f"LoaderNode needs a DataLoader2, got {loader!r:.80} of type {type(loader).__name__}")
        self.loader = loader
        self._items: DataLoader2Iterator[T] | None = None

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        if initial_state is not None:
            self.loader.load_state_dict(initial_state)
        _ = self.loader.epoch  # asked for: also an epoch of which one item is taken is one, and no look
        self._items = iter(self.loader)

    def next(self) -> T:
        assert self._items is not None
        return next(self._items)

    def get_state(self) -> dict[str, Any]:
        items = self._items
        return items.state_dict() if items is not None and items.finished else self.loader.state_dict()


class NodesReader(IterDataPipe[T]):
    """The items of a node of ``torchdata.nodes``, as a source of a graph.

    ``make(epoch)`` makes the nodes of a pass anew and returns the last one: nodes hold their position themselves, so
    that each pass has its own.

    State: that of the nodes, as exact as they are. A sharding point behind it makes every shard read all of it.

    Raises: TypeError if ``make`` is no function or, while iterating, makes no node.
    """

    def __init__(self, make: Callable[[int], BaseNode[T]]) -> None:
        check_function("make", make)
        self.make = make

    def iterate(self, context: Context) -> NodeIterator[T]:
        return _NodesIterator(self, context)


class _NodesIterator(NodeIterator[T]):
    node: NodesReader[T]

    def __init__(self, node: NodesReader[T], context: Context) -> None:
        super().__init__(node, context)
        made: Any = node.make(context.epoch)
        if not isinstance(made, BaseNode):
            raise TypeError(f"NodesReader needs a node of torchdata.nodes, make() returned {made!r:.80}")
        self._items = _Items(made)

    def get_state(self) -> dict[str, Any]:
        return self._items.state_dict()

    def set_state(self, state: dict[str, Any]) -> None:
        self._items.load_state_dict(state)

    def run(self) -> Iterator[T]:
        return self._items


class _Items(Iterator[Any]):
    """The items of a node. Part of no cycle of references: threads of its nodes end when it is dropped."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._count = 0
        self._ended = self._begun = False
        self._loaded: Any = None

    def state_dict(self) -> dict[str, Any]:
        if self._ended:
            return {"count": self._count, "ended": True}
        inner = copy.deepcopy(self._node.state_dict()) if self._begun else self._loaded
        return {"count": self._count, "nodes": inner}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._count = stored_count(state, "count")
        self._ended = state.get("ended") is True
        self._loaded = copy.deepcopy(state.get("nodes"))
        if self._count and not self._ended and self._loaded is None:
            raise StateError(
                f"the state stands after item {self._count} of torchdata.nodes, and has no state of theirs"
            )

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        if not self._begun:
            with refusing_misfits("the nodes of torchdata.nodes"):
                self._node.reset(copy.deepcopy(self._loaded))
            self._begun = True
        try:
            item = next(self._node)
        except StopIteration:
            self._ended = True
            raise
        self._count += 1
        return item

    def close(self) -> None:
        """Let go of the nodes; the state stays."""
        if not self._ended:
            self._loaded = self.state_dict().get("nodes")
        self._begun, self._node = False, None
