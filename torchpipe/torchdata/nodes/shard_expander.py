"""``shard_expand``: many names of files out of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchpipe.formats.storage.paths import expand_braces
from torchpipe.iter._shared.bases import OneInput
from torchpipe.iter._shared.expanding import ExpandingIterator
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe

__all__ = ["ShardExpander"]


class _ShardNameIterator(ExpandingIterator[str]):
    def expand(self, item: Any) -> Iterable[str]:
        if not isinstance(item, str):
            raise TypeError(f"shard_expand needs names as text, got {item!r:.200} of type {type(item).__name__}")
        return expand_braces(item)


@functional_datapipe("shard_expand")
class ShardExpander(OneInput[str]):
    """Takes names in which braces stand as in a shell (``"train-{000..199}.tar"``, ``"{a,b}.tar"``), and yields all
    names that they stand for.

    State: what is left of the names. Raises: while iterating, TypeError for items that are no text, ValueError for more
    than a million names of one.
    """

    iterator = _ShardNameIterator

    def __init__(self, source_datapipe: IterDataPipe[str]) -> None:
        super().__init__(source_datapipe)
