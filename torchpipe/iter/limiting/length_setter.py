"""``set_length``: say how many items there are."""

from __future__ import annotations

from typing import TypeVar

from torchpipe.iter._shared.bases import OneInput
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import DataPipe, walk
from torchpipe.node.validate import check_count

__all__ = ["LengthSetter", "is_estimated"]

T = TypeVar("T")


@functional_datapipe("set_length")
class LengthSetter(OneInput[T]):
    """Its input, with ``length`` as its ``len()``: for progress bars and schedules. It may be an estimate: nothing ends
    or is said to have ended because of it.

    State: none of its own. Raises: ValueError if ``length`` is negative.
    """

    alters_stream = False
    one_to_one = True
    selects = True

    def __init__(self, source_datapipe: IterDataPipe[T], length: int) -> None:
        super().__init__(source_datapipe)
        self.length = check_count("length", length, at_least=0)

    def __len__(self) -> int:
        return self.length

    def iterate(self, context: Context) -> NodeIterator[T]:
        return context.iterate(self.source)


def is_estimated(root: DataPipe) -> bool:
    """True if the length of the graph may be an estimate, which a user has set."""
    return any(isinstance(node, LengthSetter) for node in walk(root))
