"""``shuffle``: mix the order of items with a bounded buffer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from torchpipe.errors import StateError
from torchpipe.indexed.selecting import SelectingIterator
from torchpipe.iter._shared.bases import Switchable, form_on
from torchpipe.iter._shared.numbered import NUMBERS, Numbered, may_be_numbered
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import stored_items
from torchpipe.node.validate import check_count
from torchpipe.randomness.seeds import IndexStream

__all__ = ["Shuffler"]

T = TypeVar("T")


class _ShuffleIterator(SelectingIterator[T]):
    node: Shuffler[T]

    def __init__(self, node: Shuffler[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.random = IndexStream(node.random_key(context))
        self.buffer: list[Any] = []  # of items, or of positions
        self._kept = "buffer" if self.positions is None else "places"
        self._numbered: Numbered | None = None
        if self.positions is None and node.enabled and may_be_numbered(source, context):
            self._numbered = Numbered(node, self.source, node.buffer_size)

    def state_dict(self) -> dict[str, Any]:
        numbered = self._numbered
        if numbered is None or not (numbered.on and numbered.is_begun):
            return super().state_dict()
        return {
            "random": self.random.state_dict(),
            **numbered.state(self.buffer, self.kept_items),
            **self.pass_engine.ended(),
        }

    def get_state(self) -> dict[str, Any]:
        if not self.node.enabled:
            return {}
        kept = self.kept_items(self.buffer) if self.positions is None else list(self.buffer)
        return {"random": self.random.state_dict(), self._kept: kept}

    def set_state(self, state: dict[str, Any]) -> None:
        self.node.check_switched(state)
        if self.node.enabled:
            self.random.load_state_dict(state["random"])
            if NUMBERS in state and self.positions is None:
                self._numbered = Numbered(self.node, self.source, self.node.buffer_size)
                self._numbered.load(state)
            else:
                self.buffer = self._checked(state)
                if self._numbered is not None:
                    self._numbered.hold(self.buffer)

    def _checked(self, state: dict[str, Any]) -> list[Any]:
        if self._kept not in state:
            forms = "items" if self.positions is None else "positions"
            raise StateError(
                f"the shuffle buffer in the state holds no {forms}, as it does here: is it another source?"
            )
        kept = stored_items(state, self._kept, at_most=self.node.buffer_size)
        if self.positions is not None and not all(map(self.positions.holds, kept)):
            raise StateError(
                "the shuffle buffer in the state holds positions that are not in the data: is it the same?"
            )
        return kept

    def choose(self) -> Iterator[Any]:
        source = self.source.items()
        if not self.node.enabled:
            yield from source
            return
        buffer, index, size = self.buffer, self.random.index, self.node.buffer_size
        if self._numbered is not None:
            source = self._numbered.coming(source, buffer)
        for item in source:
            buffer.append(item)
            if len(buffer) >= size:
                yield self._take(index(len(buffer)))
        while buffer:
            yield self._take(index(len(buffer)))

    def _take(self, index: int) -> Any:
        buffer = self.buffer
        item, buffer[index] = buffer[index], buffer[-1]  # the last one fills the gap: no shifting
        buffer.pop()
        if self._numbered is not None:
            self._numbered.take(index)
        return item

    def close(self) -> None:
        super().close()
        self.buffer = []


@functional_datapipe("shuffle")
class Shuffler(Switchable[T]):
    """Hands out items in random order: each time one, drawn evenly, of the next ``buffer_size`` that are left.

    The order is a function of seed, epoch and position in the graph. Before ``sharding_filter`` all shards shuffle
    alike, which keeps their shares apart; after it, each has an order of its own. A buffer as large as the data gives
    every order the same chance. ``unbatch_level`` takes lists apart first, as ``unbatch`` does.

    Of a source that is read by position (a sequence, a map-style node; ``sharding_filter``, ``header``, ``concat`` and
    other shuffles of these) the buffer holds positions, and each item is made when it is handed out: the buffer is
    one of integers, and after it ``sharding_filter`` makes each shard read only the items that it keeps.

    State: up to ``buffer_size - 1`` items or positions, a key and the number of draws. Where torchpipe's readers
    give the items, with no function of yours before it, and 16 items of it say, now and then, that a whole
    buffer has more than 1 MiB, or those of all shards together 4 MiB, the state names the items by their numbers: a
    resume reads up to five buffers of items again.

    Raises: ValueError if ``buffer_size`` is below 1.
    """

    iterator = _ShuffleIterator
    selects = True

    def __init__(self, datapipe: IterDataPipe[T], *, buffer_size: int = 10000, unbatch_level: int = 0) -> None:
        super().__init__(datapipe)
        self.buffer_size = check_count("buffer_size", buffer_size, at_least=1)
        if check_count("unbatch_level", unbatch_level, at_least=-1):
            self.source = form_on(datapipe, "unbatch")(unbatch_level=unbatch_level)

    def __len__(self) -> int:
        return len(self.source)
