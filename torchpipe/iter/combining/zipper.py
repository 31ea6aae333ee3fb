"""``zip``: tuples of one item of each input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchpipe.iter._shared.bases import ItemIterator, SeveralInputs
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe

__all__ = ["Zipper"]


class _ZipIterator(ItemIterator[tuple[Any, ...]]):
    def run(self) -> Iterator[tuple[Any, ...]]:
        yield from zip(*[item.items() for item in self.inputs])


@functional_datapipe("zip")
class Zipper(SeveralInputs[tuple[Any, ...]]):
    """Tuples of the first items of all inputs, then of the second ones ..., until the shortest input ends.

    When an input ends, those before it have been asked for one item more, as with Python's ``zip``.

    State: none of its own.

    Raises: ValueError without inputs; TypeError for an input that is no iterable node.
    """

    iterator = _ZipIterator
    one_to_one = True

    def __init__(self, *datapipes: IterDataPipe[Any]) -> None:
        super().__init__(datapipes)

    def __len__(self) -> int:
        return min(len(datapipe) for datapipe in self.datapipes)
