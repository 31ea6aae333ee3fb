"""``mux`` and ``mux_longest``: one item of each input in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from torchpipe.errors import StateError
from torchpipe.iter._shared.bases import SeveralInputs
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator, stored_count, stored_items

__all__ = ["Multiplexer", "MultiplexerLongest"]

T = TypeVar("T")
_END: Any = object()


class _MuxIterator(NodeIterator[T]):
    keeps_items = True

    left: list[T]

    def __init__(self, node: Multiplexer[T], context: Context, *inputs: IterDataPipe[T]) -> None:
        super().__init__(node, context, *inputs)
        self.left = []  # of the round, the next one last

    def get_state(self) -> dict[str, Any]:
        return {"left": self.kept_items(self.left)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.left = stored_items(state, "left", at_most=len(self.inputs) - 1)

    def run(self) -> Iterator[T]:
        while True:
            while self.left:
                yield self.left.pop()
            items = [next(item.items(), _END) for item in self.inputs]
            if any(item is _END for item in items):
                return
            self.left = items[::-1]
            del items


@functional_datapipe("mux")
class Multiplexer(SeveralInputs[T]):
    """The first items of all inputs, then the second ones of all ..., until the shortest input ends.

    An item of each input is pulled before the first of a round is handed out, so that rounds are whole: what was pulled
    for one that is not is left out.

    State: what is left of the round.

    Raises: ValueError without inputs; TypeError for an input that is no iterable node.
    """

    iterator = _MuxIterator
    pairs = False

    def __init__(self, *datapipes: IterDataPipe[T]) -> None:
        super().__init__(datapipes)

    def __len__(self) -> int:
        return min(len(datapipe) for datapipe in self.datapipes) * len(self.datapipes)


class _MuxLongestIterator(NodeIterator[T]):
    def __init__(self, node: MultiplexerLongest[T], context: Context, *inputs: IterDataPipe[T]) -> None:
        super().__init__(node, context, *inputs)
        self.turn = 0
        self.ended = [False] * len(inputs)

    def get_state(self) -> dict[str, Any]:
        return {"turn": self.turn, "ended": list(self.ended)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.turn = stored_count(state, "turn", at_most=len(self.inputs) - 1)
        self.ended = stored_items(state, "ended")
        if len(self.ended) != len(self.inputs) or not all(type(flag) is bool for flag in self.ended):
            raise StateError(
                f"the state says of {len(self.ended)} inputs whether they have ended, not of {len(self.inputs)}"
            )

    def run(self) -> Iterator[T]:
        while not all(self.ended):
            turn = self.turn
            self.turn = (turn + 1) % len(self.inputs)
            if not self.ended[turn]:
                held = [next(self.inputs[turn].items(), _END)]
                if held[0] is _END:
                    self.ended[turn] = True
                else:
                    yield held.pop()


@functional_datapipe("mux_longest")
class MultiplexerLongest(SeveralInputs[T]):
    """The first items of all inputs, then the second ones of all ..., without those that have ended, until all have.

    State: whose turn it is, and which have ended.

    Raises: ValueError without inputs; TypeError for an input that is no iterable node.
    """

    iterator = _MuxLongestIterator
    pairs = False

    def __init__(self, *datapipes: IterDataPipe[T]) -> None:
        super().__init__(datapipes)

    def __len__(self) -> int:
        return sum(len(datapipe) for datapipe in self.datapipes)
