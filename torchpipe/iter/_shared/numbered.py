"""A buffer whose items a state names by their numbers, and does not hold: a resume makes them again.

Runs in every process that executes a part of a graph. A shuffle buffer of three has had items 0 to 4 of its input, and
two of them were handed out, 0 and 3. A snapshot of the input was taken before item 0. The state holds that snapshot,
the number of items to make again, 5, and ``[4, 1, 2]``: the numbers of the items in the buffer, in its order.

A snapshot is taken now and then; the oldest that is younger than ``_WINDOW`` buffers counts. Items that are older still
(0.7 % of a full buffer) are in the state themselves. A resume reads at most ``_WINDOW`` buffers again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

from torchpipe.errors import StateError
from torchpipe.iter._shared.reading import FileReader
from torchpipe.machine import bytes_of
from torchpipe.node.context import Context
from torchpipe.node.iterator import NodeIterator, stored_count, stored_items
from torchpipe.node.traits import DataPipe, has_assumption, node_name, reads_shared, traits_of, walk
from torchpipe.node.user_code import runs_users_code
from torchpipe.state import Cursor, encode

__all__ = ["NUMBERS", "Numbered", "may_be_numbered"]

NUMBERS = "numbers"  # in a state: of each item of the buffer, its number since the snapshot; -1: it is in the state
_AGAIN = "again"  # in a state: how many items are made again
_HELD = "held"  # in a state: the items that are older than the snapshot

_WINDOW = 5  # buffers
_SNAPSHOTS = 4  # in each buffer's length
_LEAST_APART = 64  # items, since a snapshot costs as much as some ten
_LOOKED_AT = 16  # items, of which it is decided, again with each snapshot
_LEAST_BYTES = 1 << 20  # of a whole buffer; a smaller one is quicker saved than made again
_LEAST_IN_ALL = 4 << 20  # of the buffers of all shards: their states are one

_END: Any = object()


def may_be_numbered(source: DataPipe, context: Context) -> bool:
    """True if the items of ``source`` are read from files by torchpipe's own code alone, so that a snapshot of its
    iterator gives them again at the cost of reading.
    """
    if context.failures is not None or context.host.supply is not None or reads_shared(source):
        return False
    nodes = list(walk(source))
    reads = any(isinstance(node, FileReader) for node in nodes)
    plain = all(
        isinstance(node, FileReader) or traits_of(node).selects or getattr(node, "by_index", False) is True
        for node in nodes
    )
    return reads and plain and not any(map(has_assumption, nodes)) and not runs_users_code(source)


class Numbered:
    """The numbers of the items that a buffer of ``size`` holds, which come from ``source``.

    ``on``: False while the items are small: then the buffer itself is saved, and nothing is noted. It is looked at now
    and then.
    """

    def __init__(self, node: DataPipe, source: NodeIterator[Any], size: int) -> None:
        self.on = True
        self._node, self._source, self._size = node, source, size
        self._numbers: list[int] = []
        self._pulled = 0
        self._snapshots: deque[tuple[int, bytes]] = deque()  # (items pulled before it, the input's state)
        self._loaded: dict[str, Any] | None = None  # a state's part, until its items are made again

    def coming(self, stream: Iterator[Any], buffer: list[Any]) -> Iterator[Any]:
        """The items of ``stream``, which the caller puts into ``buffer`` one by one."""
        self._note()
        if self._loaded is not None:
            self._make_again(self._loaded, stream, buffer)
            self._loaded = None
        period = _LOOKED_AT
        while (first := next(stream, _END)) is not _END:
            items = chain((first,), islice(stream, period - 1))
            del first
            yield from self._counted(items) if self.on else items
            self._decide(buffer)
            period = max(_LEAST_APART, self._size // _SNAPSHOTS)

    def _counted(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self._numbers.append(self._pulled)
            self._pulled += 1
            yield item
            del item
            self._note_if_due()

    def _decide(self, buffer: list[Any]) -> None:
        """Decide if the buffer's items are large enough. Items that were not numbered when they came are in states
        themselves, until they are handed out.
        """
        if not self._is_large(buffer):
            self.on = False
            self._snapshots.clear()
        elif not self.on:
            self.on, self._numbers = True, [-1] * len(buffer)
            self._snapshots.clear()
            self._note()

    @property
    def is_begun(self) -> bool:
        """True once there is a snapshot, or a state, from which items can be made again."""
        return bool(self._snapshots) or self._loaded is not None

    def take(self, index: int) -> None:
        """Item ``index`` of the buffer is handed out, and the last one takes its place."""
        if self.on:
            self._numbers[index] = self._numbers[-1]
            self._numbers.pop()

    def state(self, buffer: list[Any], keep: Callable[[list[Any]], list[Any]]) -> dict[str, Any]:
        """The state: the numbers of the buffer's items, and the input's state from which they are made again."""
        if self._loaded is not None:
            return {**self._loaded, "inputs": [self._source.state_dict()]}
        first, snapshot = self._snapshots[0]
        numbers = [max(-1, number - first) for number in self._numbers]
        held = keep([item for item, number in zip(buffer, numbers) if number < 0])
        return {
            **{NUMBERS: numbers, _AGAIN: self._pulled - first, _HELD: held},
            "inputs": [Cursor(snapshot).to_state()],
        }

    def hold(self, items: list[Any]) -> None:
        """Begin with a buffer of ``items``, which a state holds."""
        self._loaded = {NUMBERS: [-1] * len(items), _AGAIN: 0, _HELD: items}

    def load(self, state: dict[str, Any]) -> None:
        """Raises: StateError if the numbers are not those of such a buffer."""
        again = stored_count(state, _AGAIN, at_most=(_WINDOW + 1) * self._size + _LEAST_APART)
        held, numbers = stored_items(state, _HELD, at_most=self._size), state[NUMBERS]
        if (
            type(numbers) is not list
            or len(numbers) > self._size
            or not all(type(number) is int and -1 <= number < again for number in numbers)
        ):
            raise StateError(f"the shuffle buffer holds some of {again} items, and the state names {numbers!r:.60}")
        named = [number for number in numbers if number >= 0]
        if len(set(named)) < len(named) or len(numbers) - len(named) != len(held):
            raise StateError(f"the shuffle buffer has {len(numbers)} items, and the state has others")
        self._loaded = {NUMBERS: numbers, _AGAIN: again, _HELD: held}

    def _note_if_due(self) -> None:
        if self._pulled % max(_LEAST_APART, self._size // _SNAPSHOTS) == 0:
            self._note()

    def _note(self) -> None:
        while self._snapshots and self._pulled - self._snapshots[0][0] > _WINDOW * self._size:
            self._snapshots.popleft()
        try:
            self._snapshots.append((self._pulled, encode(self._source.state_dict())))
        except StateError:  # it cannot tell its position here
            self.on = self.on and bool(self._snapshots)

    def _make_again(self, loaded: dict[str, Any], stream: Iterator[Any], buffer: list[Any]) -> None:
        numbers, held = loaded[NUMBERS], iter(loaded[_HELD])
        buffer[:] = [next(held) if number < 0 else None for number in numbers]
        indices = {number: index for index, number in enumerate(numbers) if number >= 0}
        context = self._source.context
        with context.making_again():
            for number in range(loaded[_AGAIN]):
                item = next(stream, _END)
                if item is _END:
                    raise StateError(
                        f"{node_name(self._node)} is to hold items that its input gives again, and that ended after "
                        f"{number} of {loaded[_AGAIN]} items: are the files the same?"
                    )
                if number in indices:
                    buffer[indices[number]] = item
                self._pulled += 1
                self._note_if_due()
                if context.host.on_again is not None:
                    context.host.on_again()
        self._numbers = list(numbers)

    def _is_large(self, buffer: list[Any]) -> bool:
        sizes = [bytes_of(item) or 0 for item in buffer[:: max(1, len(buffer) // _LOOKED_AT)]]
        least = min(_LEAST_BYTES, _LEAST_IN_ALL / self._source.context.num_shards)
        return sum(sizes) * self._size >= least * max(1, len(sizes))
