"""``max_token_bucketize``: batches of items of like length, of so many tokens."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from torchpipe.iter._shared.bases import ItemIterator, OneInput
from torchpipe.iter._shared.batches import note_dropped
from torchpipe.node.context import Context
from torchpipe.node.datapipe import DataChunk, IterDataPipe, functional_datapipe
from torchpipe.node.iterator import stored_count, stored_items
from torchpipe.node.plain import checked_size, length_of
from torchpipe.node.validate import check_columns, check_count

__all__ = ["MaxTokenBucketizer"]

T = TypeVar("T")

_END: Any = object()


class _BucketizeIterator(ItemIterator[list[T]]):
    node: MaxTokenBucketizer[T]
    keeps_items = True

    def __init__(self, node: MaxTokenBucketizer[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.len_fn = self.with_retries(node.len_fn)
        self.dropped = 0  # items that are too short or too long
        self.heap: list[_Sized] = []
        self.batch: list[_Sized] = []

    def get_state(self) -> dict[str, Any]:
        entries = {
            name: self.kept_items([entry.length, entry.item] for entry in getattr(self, name))
            for name in ("heap", "batch")
        }
        return {**entries, "dropped": self.dropped}

    def set_state(self, state: dict[str, Any]) -> None:
        self.dropped = stored_count(state, "dropped")
        for name, most in (("heap", self.node.buffer_size), ("batch", None)):
            entries = [_Sized(length, item) for length, item in stored_items(state, name, most)]
            if not all(type(entry.length) in (int, float) and entry.length >= 0 for entry in entries):
                raise ValueError(f"{name} has items without a length")
            setattr(self, name, entries)  # as it was: heapify() could change the order of equal ones

    def run(self) -> Iterator[list[T]]:
        node, source = self.node, self.source.items()
        while True:
            item = next(source, _END)
            if item is _END:
                break
            length = checked_size(self.len_fn, item, "the length")
            if node.min_len <= length <= node.max_len:
                heapq.heappush(self.heap, _Sized(length, item))
                if node.buffer_size is not None and len(self.heap) >= node.buffer_size and (full := self._take()):
                    yield full
            else:
                why = f"whose length {length!r} is not from {node.min_len} to {node.max_len}"
                self.dropped = note_dropped(self, self.dropped, why)
        while self.heap:
            if full := self._take():
                yield full
        if self.batch:
            full, self.batch = self._made(), []
            yield full

    def _take(self) -> list[T] | None:
        """Move the shortest into the batch; the batch before, if it has no room for it."""
        entry = heapq.heappop(self.heap)
        if self.node.include_padding:
            tokens = (len(self.batch) + 1) * max(other.length for other in (entry, *self.batch))
        else:
            tokens = entry.length + sum(other.length for other in self.batch)
        if tokens <= self.node.max_token_count or not self.batch:
            self.batch.append(entry)
            return None
        full, self.batch = self._made(), [entry]
        return full

    def _made(self) -> list[T]:
        return DataChunk([entry.item for entry in self.batch])

    def close(self) -> None:
        super().close()
        self.heap, self.batch = [], []


@functional_datapipe("max_token_bucketize")
class MaxTokenBucketizer(OneInput[list[T]]):
    """Makes batches of the shortest items first, out of the next ``buffer_size`` (None: all there are).

    The lengths that ``len_fn`` gives (by default ``len``; of a dict, that of ``input_ids`` or ``tokens``) sum up to at
    most ``max_token_count`` in a batch; with ``include_padding``, the longest times the number of items does. Items
    shorter than ``min_len`` or longer than ``max_len`` (``max_token_count``) are left out: the state
    counts them, and a warning tells of the first. Put a ``shuffle`` before and
    after it: batches come from short to long within a buffer.

    State: the items in the buffer and in the batch being made.

    Raises: ValueError for counts below 1 or bounds that contradict each other; TypeError if ``len_fn`` is no function.
    """

    iterator = _BucketizeIterator

    def __init__(
        self,
        datapipe: IterDataPipe[T],
        max_token_count: int,
        len_fn: Callable[[T], int] = length_of,
        min_len: int = 0,
        max_len: int | None = None,
        buffer_size: int | None = 1000,
        include_padding: bool = False,
    ) -> None:
        super().__init__(datapipe)
        check_columns("len_fn", len_fn, None)
        self.max_token_count = check_count("max_token_count", max_token_count, at_least=1)
        self.max_len = max_token_count if max_len is None else check_count("max_len", max_len, at_least=0)
        self.min_len = check_count("min_len", min_len, at_least=0)
        if not self.min_len <= self.max_len <= max_token_count:
            raise ValueError(
                f"min_len, max_len and max_token_count must not fall, got {min_len}, {self.max_len}, {max_token_count}"
            )
        self.len_fn: Callable[[Any], Any] = len_fn
        self.buffer_size = None if buffer_size is None else check_count("buffer_size", buffer_size, at_least=1)
        self.include_padding = include_padding


@dataclass(slots=True)
class _Sized:
    """Compared by its length alone, as torchdata does: the order of equal ones is the heap's."""

    length: Any
    item: Any

    def __lt__(self, other: _Sized) -> bool:
        return bool(self.length < other.length)
