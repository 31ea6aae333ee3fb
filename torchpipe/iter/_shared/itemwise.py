"""Nodes that change each item by itself, by their arguments alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator
from typing import Any

from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator

__all__ = ["Itemwise", "check_parts"]


class Itemwise(IterDataPipe[Any]):
    """Base of such nodes, which set ``datapipe``: define :meth:`change`. State: none of their own."""

    datapipe: IterDataPipe[Any]

    def __len__(self) -> int:
        return len(self.source)

    @abstractmethod
    def change(self, item: Any) -> Any:
        """What is handed out for ``item``, which stays as it is."""

    def iterate(self, context: Context) -> NodeIterator[Any]:
        return _ItemwiseIterator(self, context, self.source)


class _ItemwiseIterator(NodeIterator[Any]):
    node: Itemwise

    def leave_out(self) -> bool:
        return True

    def run(self) -> Iterator[Any]:
        return map(self.node.change, self.source.items())


def check_parts(form: str, item: Any, parts: tuple[Hashable, ...]) -> None:
    """Raises: TypeError unless ``item`` is a tuple, list or dict; KeyError or IndexError for a part that it lacks."""
    if not isinstance(item, tuple | list | dict):
        raise TypeError(f"{form} needs tuples, lists or dicts, got {item!r:.200} of type {type(item).__name__}")
    for part in parts:
        if isinstance(item, dict):
            if part not in item:
                raise KeyError(f"{form} found no {part!r} in {item!r:.200}")
        elif not isinstance(part, int) or not 0 <= part < len(item):
            raise IndexError(f"{form} found no place {part!r} in {item!r:.200}, which has {len(item)}")
