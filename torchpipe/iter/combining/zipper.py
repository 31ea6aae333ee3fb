"""``zip``: tuples of one item of each input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchpipe.iter._shared.bases import ItemIterator, SeveralInputs
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe

__all__ = ["Zipper"]

_END: Any = object()


class _ZipIterator(ItemIterator[tuple[Any, ...]]):
    node: Zipper
    uneven = False  # an input has ended before another one, and strict says that they do not

    def leave_out(self) -> bool:
        return not self.uneven

    def run(self) -> Iterator[tuple[Any, ...]]:
        streams = [item.items() for item in self.inputs]
        if not self.node.strict:
            yield from zip(*streams)
            return
        while True:
            held = [[next(stream, _END) for stream in streams]]
            ended = [number for number, item in enumerate(held[0]) if item is _END]
            if len(ended) == len(streams):
                return
            if ended:
                self.uneven = True
                going = next(number for number in range(len(streams)) if number not in ended)
                raise ValueError(
                    f"zip(strict=True): input {ended[0]} has ended, and input {going} has not, in shard "
                    f"{self.context.shard} of {self.context.num_shards}. Leave strict out to end with the shortest"
                )
            yield tuple(held.pop())


@functional_datapipe("zip")
class Zipper(SeveralInputs[tuple[Any, ...]]):
    """Tuples of the first items of all inputs, then of the second ones ..., until the shortest input ends.

    When an input ends, those before it have been asked for one item more, as with Python's ``zip``.

    With ``strict`` it is an error that they do not end together (without it, what the longer ones have left is never
    seen, as in torch).

    State: none of its own.

    Raises: ValueError without inputs; TypeError for an input that is no iterable node; with ``strict``, ValueError
    while iterating.
    """

    iterator = _ZipIterator
    one_to_one = True

    def __init__(self, *datapipes: IterDataPipe[Any], strict: bool = False) -> None:
        super().__init__(datapipes)
        self.strict = strict

    def __len__(self) -> int:
        return min(len(datapipe) for datapipe in self.datapipes)
