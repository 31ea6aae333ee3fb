"""``zip``: tuples of one item of each input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_input

__all__ = ["Zipper"]


@functional_datapipe("zip")
class Zipper(IterDataPipe[tuple[Any, ...]]):
    """Tuples of the first items of all inputs, then of the second ones ..., until the shortest input ends.

    When an input ends, those before it have been asked for one item more, as with Python's ``zip``.

    State: none of its own.

    Raises: ValueError without inputs; TypeError for an input that is no iterable node.
    """

    one_to_one = True

    def __init__(self, *datapipes: IterDataPipe[Any]) -> None:
        if not datapipes:
            raise ValueError("zip needs at least one datapipe, got none")
        for datapipe in datapipes:
            check_input("zip", datapipe)
        self.datapipes = datapipes

    def __len__(self) -> int:
        return min(len(datapipe) for datapipe in self.datapipes)

    def iterate(self, context: Context) -> NodeIterator[tuple[Any, ...]]:
        return _ZipIterator(self, context, *self.datapipes)


class _ZipIterator(NodeIterator[tuple[Any, ...]]):
    def run(self) -> Iterator[tuple[Any, ...]]:
        yield from zip(*[item.items() for item in self.inputs])
