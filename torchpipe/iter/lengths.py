"""Batches of items of several lengths.

- ``pad_batch``: a batch of samples of several lengths as tensors.
- ``dynamic_batch``: batches of consecutive items, as many as a cost allows.
- ``bucket_by_length``: batches of items whose lengths lie between the same bounds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch.utils.data import default_collate

from torchpipe.errors import StateError, add_note
from torchpipe.iter._shared.arrays import FIELD, as_array, field_name, given_pads, pads_of
from torchpipe.iter._shared.bases import ItemIterator, Itemwise, OneInput
from torchpipe.iter._shared.batches import check_same_fields, note_dropped
from torchpipe.node.context import Context
from torchpipe.node.datapipe import DataChunk, IterDataPipe, functional_datapipe
from torchpipe.node.function_results import checked_size, length_of, plain
from torchpipe.node.iterator import stored_count, stored_items
from torchpipe.node.traits import callable_name
from torchpipe.node.validate import check_choice, check_columns, check_count

__all__ = ["BatchPadder", "DynamicBatcher", "LengthBucketer"]


@functional_datapipe("pad_batch")
class BatchPadder(Itemwise[Any]):
    """Pads the samples of each batch (a list, from ``batch`` or its like) to one length, and stacks them.

    Samples are sequences of numbers (lists, arrays, tensors), of any shape behind the first dimension: the result is a
    pair of a tensor (samples, length, ...) and their lengths (int64). Or they are dicts: each field that holds
    sequences is padded and has its lengths in ``<field>_lengths``; the others are collated as torch does.

    The length is that of the longest sample, or the next in ``length``, a number or a list of them, or the next
    multiple of ``multiple_of``; on XLA, few lengths mean few compilations. ``pad_value`` is a number or a dict of them
    by field, where 0 stands for those that it does not name; a number other than 0 is for fields of one kind (bool,
    whole, floating). ``side="left"`` pads before the sample.

    State: none of its own.

    Raises: ValueError for counts below 1 and options that contradict each other. While iterating: ValueError for a
    sample longer than ``length`` and a ``pad_value`` that names no field or that a field cannot hold; KeyError for a
    sample that has other fields than the first one of its batch; TypeError for another batch.
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        pad_value: Any = 0,
        *,
        length: int | Sequence[int] | None = None,
        multiple_of: int | None = None,
        side: Literal["left", "right"] = "right",
    ) -> None:
        super().__init__(datapipe)
        check_choice("side", side, ("left", "right"))
        if length is not None and multiple_of is not None:
            raise ValueError("length= and multiple_of= both say to what length: give one of them")
        lengths = () if length is None else tuple(length) if isinstance(length, Iterable) else (length,)
        self.pad_value = given_pads(pad_value)
        self.length = tuple(sorted(check_count("length", number, at_least=1) for number in lengths))
        if length is not None and not self.length:
            raise ValueError("length must name at least one length, got an empty list")
        self.multiple_of = None if multiple_of is None else check_count("multiple_of", multiple_of, at_least=1)
        self.side = side

    def padded_length(self, longest: int) -> int:
        """The length to which a batch is padded. Raises: ValueError."""
        if self.length:
            for length in self.length:
                if longest <= length:
                    return length
            raise ValueError(
                f"pad_batch got a sample of length {longest}, more than length={self.length[-1]}: cut or filter these "
                "samples before, or give a greater length"
            )
        step = self.multiple_of or 1
        return -(-longest // step) * step

    def change(self, item: Any) -> Any:
        if not isinstance(item, list) or not item:
            raise TypeError(
                f"pad_batch needs lists of samples, got {item!r:.60} of type {type(item).__name__}: put batch(), "
                "or another node that gathers samples, before it"
            )
        return self._dicts(item) if isinstance(item[0], Mapping) else self._bare(item)

    def _dicts(self, batch: list[Any]) -> dict[str, Any]:
        check_same_fields("pad_batch", batch)
        ragged, made = {}, {}
        for name in batch[0]:
            values = [sample[name] for sample in batch]
            if any(map(_is_sequence, values)):
                if f"{name}_lengths" in batch[0]:
                    raise ValueError(
                        f"pad_batch adds the field '{name}_lengths' to those of a sample, which has one of that name: "
                        "rename or remove it"
                    )
                ragged[name] = _arrays(name, values)
            else:
                made[name] = _collated(name, values)
        dtypes = {name: first.dtype for name, (_, first) in ragged.items()}
        for name, pad in zip(ragged, pads_of("pad_batch", self.pad_value, dtypes)):
            made[name], made[f"{name}_lengths"] = self._padded(*ragged[name], pad)
        names = [key for name in batch[0] for key in ((name, f"{name}_lengths") if name in ragged else (name,))]
        return {name: made[name] for name in names}

    def _bare(self, batch: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        arrays, first = _arrays(FIELD, batch)
        (pad,) = pads_of("pad_batch", self.pad_value, {FIELD: first.dtype})
        return self._padded(arrays, first, pad)

    def _padded(self, arrays: list[Any], first: Any, pad: Any) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = [len(array) for array in arrays]
        made = np.full((len(arrays), self.padded_length(max(lengths)), *first.shape[1:]), pad, first.dtype)
        for row, array, size in zip(made, arrays, lengths):
            if size and self.side == "right":
                row[:size] = array
            elif size:
                row[-size:] = array
        return torch.from_numpy(made), torch.tensor(lengths, device="cpu")


def _arrays(name: str, values: list[Any]) -> tuple[list[Any], Any]:
    """The values as arrays, and the one that says of which type they are. Raises: TypeError."""
    arrays = [as_array("pad_batch", name, value)[0] for value in values]
    first = next((array for array in arrays if len(array)), arrays[0])  # an empty list has no dtype
    for number, array in enumerate(arrays):
        if len(array) and (array.dtype != first.dtype or array.shape[1:] != first.shape[1:]):
            raise TypeError(
                f"pad_batch cannot stack {array.dtype} of shape {array.shape} and {first.dtype} of shape "
                f"{first.shape}, where {field_name(name)} has both (sample {number} of {len(arrays)}): only the first "
                "dimension may differ"
            )
    return arrays, first


def _collated(name: str, values: list[Any]) -> Any:
    try:
        return default_collate(values)
    except Exception as error:
        add_note(error, f"pad_batch: while collating field {name!r}")
        raise


def _is_sequence(value: Any) -> bool:
    if isinstance(value, np.ndarray | torch.Tensor):
        return value.ndim > 0
    return isinstance(value, list | tuple | range) and not any(isinstance(part, str) for part in value)


T = TypeVar("T")

_END: Any = object()


class _DynamicIterator(ItemIterator[list[T]]):
    node: DynamicBatcher[T]
    keeps_items = True

    def __init__(self, node: DynamicBatcher[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.cost_fn = self.with_retries(node.cost_fn)
        self.dropped = 0  # items that cost too much
        self.begun: list[Any] = []  # the cost of the item that begins the next batch, and the item
        self.batch: list[T] = []  # in the making
        self.total: float = 0  # its costs
        self.highest: float = 0

    def get_state(self) -> dict[str, Any]:
        return {"begun": self.kept_items(self.begun), "dropped": self.dropped}

    def set_state(self, state: dict[str, Any]) -> None:
        self.begun = stored_items(state, "begun", at_most=2)
        self.dropped = stored_count(state, "dropped")
        cost = self.begun[0] if len(self.begun) == 2 else 0
        if len(self.begun) == 1 or type(cost) not in (int, float) or not cost >= 0:
            raise StateError(f"a batch begins with a cost and an item, the state has {self.begun!r:.60}")

    def run(self) -> Iterator[list[T]]:
        node, most = self.node, self.node.max_items
        while True:
            while entry := self._next():
                cost, item = entry
                highest = max(self.highest, cost)
                after = highest * (len(self.batch) + 1) if node.padded else self.total + cost
                if self.batch and after > node.max_cost:
                    self.begun = entry
                    break
                self.total, self.highest = after, highest
                self.batch.append(item)
                if len(self.batch) == most or after > node.max_cost:
                    break
            full, self.batch, self.total, self.highest = DataChunk(self.batch), [], 0, 0
            if not full:
                return
            yield full

    def _next(self) -> list[Any]:
        """The cost of the next item, and the item; nothing at the end."""
        if self.begun:
            entry, self.begun = self.begun, []
            return entry
        node = self.node
        while (item := next(self.source.items(), _END)) is not _END:
            cost = checked_size(self.cost_fn, item, "the cost")
            if cost <= node.max_cost or node.overflow == "keep":
                return [cost, item]
            if node.overflow == "raise":
                raise ValueError(
                    f"{callable_name(self.cost_fn)} gives a cost of {cost!r} for an item, more than "
                    f"max_cost={node.max_cost}: choose overflow='drop' or 'keep', or filter() these items before"
                )
            self.dropped = note_dropped(self, self.dropped, f"which costs {cost!r}, more than max_cost={node.max_cost}")
        return []

    def close(self) -> None:
        super().close()
        self.begun, self.batch = [], []


@functional_datapipe("dynamic_batch")
class DynamicBatcher(OneInput[list[T]]):
    """Gathers consecutive items into a list as long as they cost no more than ``max_cost`` together.

    ``cost_fn`` gives the cost of an item, by default its length (``len``; of a dict, that of ``input_ids`` or
    ``tokens``). The costs of a batch are summed up; with ``padded``, the highest is taken times the number of items, as
    when all are padded to the longest. ``max_items`` bounds their number. An item that alone costs more raises a
    ValueError, is left out (``overflow="drop"``), or is a batch of its own (``"keep"``). ``sort`` before it, within a
    window, makes for less padding.

    State: the item that begins the next batch.

    Raises: ValueError for a ``max_cost`` that is not above 0, or counts below 1; TypeError if ``cost_fn`` is none.
    """

    iterator = _DynamicIterator

    def __init__(
        self,
        datapipe: IterDataPipe[T],
        max_cost: float,
        cost_fn: Callable[[T], float] = length_of,
        *,
        padded: bool = False,
        max_items: int | None = None,
        overflow: Literal["raise", "drop", "keep"] = "raise",
    ) -> None:
        super().__init__(datapipe)
        check_columns("cost_fn", cost_fn, None)
        check_choice("overflow", overflow, ("raise", "drop", "keep"))
        max_cost = plain(max_cost)
        if isinstance(max_cost, bool) or not isinstance(max_cost, int | float):
            raise TypeError(f"max_cost must be a number, got {max_cost!r} of type {type(max_cost).__name__}")
        if not 0 < max_cost < float("inf"):
            raise ValueError(f"max_cost must be above 0, got {max_cost}")
        self.max_cost = max_cost
        self.cost_fn: Callable[[Any], Any] = cost_fn
        self.padded = padded
        self.max_items = None if max_items is None else check_count("max_items", max_items, at_least=1)
        self.overflow = overflow


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
