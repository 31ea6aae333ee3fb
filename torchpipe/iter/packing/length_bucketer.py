"""``bucket_by_length``: batches of items whose lengths lie between the same bounds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from torchpipe.errors import StateError
from torchpipe.iter._shared.bases import ItemIterator, OneInput
from torchpipe.node.context import Context
from torchpipe.node.datapipe import DataChunk, IterDataPipe, functional_datapipe
from torchpipe.node.iterator import stored_items
from torchpipe.node.plain import checked_size, length_of
from torchpipe.node.validate import check_columns, check_count

__all__ = ["LengthBucketer"]

T = TypeVar("T")


class _BucketIterator(ItemIterator[list[T]]):
    node: LengthBucketer[T]
    keeps_items = True

    def __init__(self, node: LengthBucketer[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.length_fn = self.with_retries(node.length_fn)
        self.buckets: list[list[T]] = [[] for _ in node.batch_size]

    def get_state(self) -> dict[str, Any]:
        return {"buckets": [self.kept_items(bucket) for bucket in self.buckets]}

    def set_state(self, state: dict[str, Any]) -> None:
        buckets, sizes = stored_items(state, "buckets"), self.node.batch_size
        if len(buckets) != len(sizes):
            raise StateError(f"the state has {len(buckets)} buckets, this node {len(sizes)}")
        self.buckets = [stored_items({"bucket": bucket}, "bucket", size - 1) for bucket, size in zip(buckets, sizes)]

    def run(self) -> Iterator[list[T]]:
        node = self.node
        for item in self.source.items():
            number = bisect_right(node.boundaries, checked_size(self.length_fn, item, "the length"))
            bucket = self.buckets[number]
            bucket.append(item)
            if len(bucket) == node.batch_size[number]:
                self.buckets[number] = []
                yield DataChunk(bucket)
        for number, bucket in enumerate(self.buckets):
            if bucket and not node.drop_last:
                self.buckets[number] = []
                yield DataChunk(bucket)

    def close(self) -> None:
        super().close()
        self.buckets = []


@functional_datapipe("bucket_by_length")
class LengthBucketer(OneInput[list[T]]):
    """Gathers items into buckets by their length, and hands out a bucket as a batch when it is full.

    As tf.data's ``bucket_by_sequence_length``: the first bucket takes lengths below ``boundaries[0]``, the last one
    those from ``boundaries[-1]`` on. ``batch_size`` is a number for all buckets or a list with one for each, where
    there are ``len(boundaries) + 1``. ``length_fn`` says how long an item is (by default ``len``; of a dict, that of
    ``input_ids`` or ``tokens``). At the end the buckets that are not full follow, the shortest first, unless
    ``drop_last``.

    State: the items in the buckets.

    Raises: ValueError for boundaries that do not rise, or another number of batch sizes; TypeError for other types.
    """

    iterator = _BucketIterator

    def __init__(
        self,
        datapipe: IterDataPipe[T],
        boundaries: Sequence[int],
        batch_size: int | Sequence[int],
        length_fn: Callable[[T], int] = length_of,
        drop_last: bool = False,
    ) -> None:
        super().__init__(datapipe)
        check_columns("length_fn", length_fn, None)
        if not isinstance(boundaries, Iterable):
            raise TypeError(f"boundaries must be a list of lengths, got {boundaries!r}")
        self.boundaries = tuple(check_count("each of boundaries", boundary, at_least=0) for boundary in boundaries)
        if not self.boundaries or list(self.boundaries) != sorted(set(self.boundaries)):
            raise ValueError(f"boundaries must be lengths that rise, at least one, got {boundaries!r:.80}")
        buckets = len(self.boundaries) + 1
        sizes = tuple(batch_size) if isinstance(batch_size, Iterable) else (batch_size,) * buckets
        if len(sizes) != buckets:
            raise ValueError(f"{len(self.boundaries)} boundaries make {buckets} buckets, batch_size has {len(sizes)}")
        self.batch_size = tuple(check_count("batch_size", size, at_least=1) for size in sizes)
        self.length_fn: Callable[[Any], Any] = length_fn
        self.drop_last = drop_last
