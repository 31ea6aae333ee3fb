"""``concat``: one input after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torchpipe.iter._shared.bases import CountingIterator, SeveralInputs
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import Positions, stored_count

__all__ = ["Concater"]

T = TypeVar("T")


class _ConcatIterator(CountingIterator[T]):
    reading = 0
    _numbered = False  # pairs with positions, not items

    def get_state(self) -> dict[str, Any]:
        return {"reading": self.reading}

    def set_state(self, state: dict[str, Any]) -> None:
        self.reading = stored_count(state, "reading", at_most=len(self.inputs) - 1)

    @property
    def positional(self) -> bool:
        return all(item.positional for item in self.inputs)

    def by_position(self) -> Positions:
        """Positions are pairs: the number of the input, a position of that."""
        parts = [item.by_position() for item in self.inputs]
        self._numbered = True

        def reader() -> Callable[[Any], Any]:
            read = [part.reader() for part in parts]
            return lambda pair: read[pair[0]](pair[1])

        def holds(pair: Any) -> bool:
            if not (isinstance(pair, list | tuple) and len(pair) == 2 and type(pair[0]) is int):
                return False
            return 0 <= pair[0] < len(parts) and parts[pair[0]].holds(pair[1])

        return Positions(self, reader, holds)

    def run(self) -> Iterator[Any]:
        for number, item in enumerate(self.inputs):
            if number >= self.reading:
                self.reading = number
                if self._numbered:
                    for position in item.items():
                        yield number, position
                else:
                    yield from item.items()


@functional_datapipe("concat")
class Concater(SeveralInputs[T]):
    """All items of the first input, then all of the second one, and so on.

    State: which input is being read.

    Raises: ValueError without inputs; TypeError for an input that is no iterable node.
    """

    iterator = _ConcatIterator
    pairs = False
    selects = True

    def __init__(self, *datapipes: IterDataPipe[T]) -> None:
        super().__init__(datapipes)

    def __len__(self) -> int:
        return sum(len(datapipe) for datapipe in self.datapipes)
