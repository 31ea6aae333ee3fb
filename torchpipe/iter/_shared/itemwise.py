"""Nodes that change each item by itself, by their arguments alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator
from typing import Any

from torchpipe.iter._shared.bases import ItemIterator, OnePerItem

__all__ = ["Itemwise", "check_parts"]


class _ItemwiseIterator(ItemIterator[Any]):
    node: Itemwise

    def run(self) -> Iterator[Any]:
        return map(self.node.change, self.source.items())


class Itemwise(OnePerItem[Any]):
    """Base of these nodes: define :meth:`change`. State: none of their own."""

    iterator = _ItemwiseIterator

    @abstractmethod
    def change(self, item: Any) -> Any:
        """What is handed out for ``item``, which stays as it is."""


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
