"""``shard_expand``: many names of files out of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchpipe.formats.places.paths import expand_braces
from torchpipe.iter._shared.expanding import ExpandingIterator
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_input

__all__ = ["ShardExpander"]


@functional_datapipe("shard_expand")
class ShardExpander(IterDataPipe[str]):
    """Takes names in which braces stand as in a shell (``"train-{000..199}.tar"``, ``"{a,b}.tar"``), and yields all
    names that they stand for.

    State: what is left of the names. Raises: while iterating, TypeError for items that are no text, ValueError for more
    than a million names of one.
    """

    thins = True

    def __init__(self, source_datapipe: IterDataPipe[str]) -> None:
        check_input("shard_expand", source_datapipe)
        self.source_datapipe = source_datapipe

    def iterate(self, context: Context) -> NodeIterator[str]:
        return _ShardNameIterator(self, context, self.source_datapipe)


class _ShardNameIterator(ExpandingIterator[str]):
    def expand(self, item: Any) -> Iterable[str]:
        if not isinstance(item, str):
            raise TypeError(f"shard_expand needs names as text, got {item!r:.200} of type {type(item).__name__}")
        return expand_braces(item)
