"""``zip_longest``: tuples of one item of each input, until all have ended."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from torchpipe.iter._shared.bases import ItemIterator, SeveralInputs
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.state.copying import copy_item, holds_mutable

__all__ = ["ZipperLongest"]

_MISSING: Any = object()


class _ZipLongestIterator(ItemIterator[tuple[Any, ...]]):
    node: ZipperLongest

    def run(self) -> Iterator[tuple[Any, ...]]:
        streams, fill = [item.items() for item in self.inputs], self.node.fill_value
        if not holds_mutable([fill]):
            yield from zip_longest(*streams, fillvalue=fill)
            return
        for items in zip_longest(*streams, fillvalue=_MISSING):
            held = [tuple([copy_item(fill) if item is _MISSING else item for item in items])]
            del items
            yield held.pop()


@functional_datapipe("zip_longest")
class ZipperLongest(SeveralInputs[tuple[Any, ...]]):
    """Tuples of the first items of all inputs, then of the second ones ..., until the longest input ends.

    ``fill_value`` stands in the places of those that have ended: a copy in each, if it can be changed in place.

    State: none of its own. Raises: ValueError without inputs; TypeError for an input that is no iterable node.
    """

    iterator = _ZipLongestIterator
    one_to_one = True

    def __init__(self, *datapipes: IterDataPipe[Any], fill_value: Any = None) -> None:
        super().__init__(datapipes)
        self.fill_value = fill_value

    def __len__(self) -> int:
        return max(len(datapipe) for datapipe in self.datapipes)
