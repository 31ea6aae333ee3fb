"""Batches and groups, and items out of them again.

- ``batch``: gather items into lists.
- ``collate``: make a batch of tensors from a list of items.
- ``groupby``: items of one key together.
- ``rebatch``: batches of any sizes into batches of one.
- ``unbatch``: take lists apart again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import cycle, islice
from typing import Any, Literal, TypeAlias, TypeVar, get_args, overload

import numpy as np
import torch
from torch.utils.data import default_collate

from torchpipe.errors import StateError, add_note
from torchpipe.iter._shared.bases import ItemIterator, OneInput, OnePerItem
from torchpipe.iter._shared.batches import default_collate_in, makes_new_tensors
from torchpipe.node.context import Context
from torchpipe.node.datapipe import DataChunk, IterDataPipe, functional_datapipe
from torchpipe.node.function_results import checked_key
from torchpipe.node.iterator import NodeIterator, refusing_misfits, stored_items
from torchpipe.node.tolerance import skip, tried
from torchpipe.node.traits import node_name
from torchpipe.node.validate import check_choice, check_columns, check_count, check_function
from torchpipe.state.copying import copy_item, separated

__all__ = ["Batcher", "Collator", "Grouper", "ReBatcher", "UnBatcher"]

T = TypeVar("T")

Last: TypeAlias = Literal["keep", "drop", "repeat", "raise"]


class _BatchIterator(ItemIterator[list[T]]):
    node: Batcher[T]
    keeps_items = True  # while it gathers them

    def __init__(self, node: Batcher[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.wrap = self.with_retries(node.wrapper_class)

        self.gathered = 0  # in the batch that was gathered last

    def lost(self, of_input: bool) -> int | None:
        if of_input:  # the rest of the batch goes with it
            size = self.node.batch_size
            skip(self.source.items(), -tried(self.source) % size)
            self.gathered = (tried(self.source) - 1) % size + 1
        return 1

    def items_in_hand(self, of_input: bool) -> int:
        return self.gathered

    def run(self) -> Iterator[list[T]]:
        size, wrap = self.node.batch_size, self.wrap
        stream = self.source.items()
        least = size if self.node.drop_last else 1
        while len(batch := list(islice(stream, size))) >= least:
            self.gathered = len(batch)
            if len(batch) < size:
                self._fill(batch)
            full = wrap(batch)
            del batch  # let go of it before it is handed out
            yield full
            del full

    def _fill(self, batch: list[T]) -> None:
        """Fill a batch that is not full, or raise, as ``last`` says."""
        last, size = self.node.last, self.node.batch_size
        if last == "raise":
            raise ValueError(f"the last batch has {len(batch)} items instead of {size}, and last='raise'")
        if last == "repeat":
            batch.extend(map(copy_item, islice(cycle(list(batch)), size - len(batch))))


@functional_datapipe("batch")
class Batcher(OneInput[list[T]]):
    """Gathers ``batch_size`` consecutive items into a list; a shorter last one is left out with ``drop_last``.

    ``last`` says more of a shorter last one: ``"keep"``, ``"drop"``, ``"repeat"``, which fills it with copies of its
    own items, from its first on, so that all batches have one size, or ``"raise"``. ``wrapper_class`` is called with
    each list and makes the batch of it. Behind a sharding point, each shard makes batches of its own items, and has a
    last one of its own: with 8 shards, ``drop_last`` leaves out up to 8 batches. Where that is too much, take fewer
    shards, or ``last="repeat"``.

    State: none of its own, since between two batches it holds no item.

    Raises: ValueError if ``batch_size`` is below 1, for another ``last``, or one beside ``drop_last``; TypeError if
    ``wrapper_class`` cannot be called. With ``last="raise"``: ValueError, while iterating, in the last batch's place.
    """

    iterator = _BatchIterator

    def __init__(
        self,
        datapipe: IterDataPipe[T],
        batch_size: int,
        drop_last: bool = False,
        wrapper_class: Callable[[list[Any]], Any] = DataChunk,
        *,
        last: Last | None = None,
    ) -> None:
        super().__init__(datapipe)
        check_function("wrapper_class", wrapper_class)
        self.batch_size = check_count("batch_size", batch_size, at_least=1)
        if last is not None:
            check_choice("last", last, get_args(Last))
            if drop_last:
                raise ValueError(f"drop_last=True and last={last!r} both say what becomes of the last batch: give one")
        self.drop_last = drop_last or last == "drop"
        self.last = "drop" if drop_last else last or "keep"
        self.wrapper_class = wrapper_class

    def __len__(self) -> int:
        full, rest = divmod(len(self.source), self.batch_size)
        return full if self.drop_last or not rest else full + 1


R = TypeVar("R")


class _CollateIterator(ItemIterator[R]):
    def __init__(self, node: Collator[R], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        if node.fn is default_collate:
            self.fn: Any = partial(_collate_batch, default_collate_in(context.host.memory))
        else:
            self.fn = self.with_retries(node.fn)

    def items_in_hand(self, of_input: bool) -> int:
        batch = self.current()
        return len(batch) if isinstance(batch, list) and batch and not of_input else 1

    def run(self) -> Iterator[R]:
        fn = self.fn
        for item in self.source.items():
            yield fn(item)  # and keeps nothing of it: what was made in shared memory is sent from there


@functional_datapipe("collate")
class Collator(OnePerItem[R]):
    """Applies ``collate_fn``, or else ``conversion``, to every item, usually a list from ``batch``.

    The default is :func:`torch.utils.data.default_collate`, which stacks numbers, arrays and tensors into tensors. In
    worker processes it stacks large tensors straight into shared memory.

    State: that of the function if it has any.

    Raises: TypeError if the function cannot be called (the dict form of ``conversion`` was for torcharrow data frames,
    which are no longer made); ValueError if it does not take one argument.
    """

    iterator = _CollateIterator
    one_to_one = True

    @overload
    def __init__(self: Collator[Any], datapipe: IterDataPipe[Any]) -> None: ...
    @overload
    def __init__(self, datapipe: IterDataPipe[T], conversion: Callable[[T], R]) -> None: ...
    @overload
    def __init__(
        self, datapipe: IterDataPipe[T], conversion: Callable[..., Any] = ..., *, collate_fn: Callable[[T], R]
    ) -> None: ...
    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        conversion: Callable[..., Any] = default_collate,
        collate_fn: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(datapipe)
        fn = conversion if collate_fn is None else collate_fn
        check_columns("conversion" if collate_fn is None else "collate_fn", fn, None)
        self.fn: Callable[[Any], R] = fn

    @property
    def yields_new_tensors(self) -> bool:  # type: ignore[override]
        return makes_new_tensors(self.fn)


def _collate_batch(fn: Callable[[Any], Any], batch: Any) -> Any:
    """torch's collate, which says of a single item only that it cannot be indexed."""
    try:
        return fn(batch)
    except Exception as error:
        if not isinstance(batch, Sequence):
            add_note(
                error,
                f"collate() makes a batch of a list of items, and got an item of type {type(batch).__name__}: "
                "put batch() before it, or give it a function",
            )
        raise


class _GroupIterator(NodeIterator[Any]):
    node: Grouper
    keeps_items = True

    def __init__(self, node: Grouper, context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.key_fn = self.with_retries(node.group_key_fn)
        self.groups: dict[Hashable, list[Any]] = {}
        self.waiting = 0  # items in them

    def get_state(self) -> dict[str, Any]:
        return {"groups": [[key, self.kept_items(items)] for key, items in self.groups.items()]}

    def set_state(self, state: dict[str, Any]) -> None:
        pairs = stored_items(state, "groups", at_most=self.node.buffer_size)
        self.groups = {key: list(items) for key, items in pairs}
        self.waiting = sum(map(len, self.groups.values()))
        if len(self.groups) != len(pairs) or not all(self.groups.values()) or self.waiting > self.node.buffer_size:
            raise StateError(
                f"{len(pairs)} groups of {self.waiting} items are in the state, where each has a key of its own and at "
                f"least one item, and all have {self.node.buffer_size} at most"
            )

    def leave_out(self) -> bool:
        return self.waiting < self.node.buffer_size  # a buffer that is full would stay so

    def run(self) -> Iterator[Any]:
        size, limit = self.node.group_size, self.node.buffer_size
        for item in self.source.items():
            key = checked_key(self.key_fn, item, "groupby")
            group = self.groups.setdefault(key, [])
            group.append(item)
            self.waiting += 1
            full = len(group) == size
            del item, group
            if full:
                yield self._taken(key)
            elif self.waiting >= limit:
                largest = max(self.groups, key=lambda key: len(self.groups[key]))
                if self._may_go(largest):
                    yield self._taken(largest)
        while self.groups:
            yield self._taken(next(iter(self.groups)))

    def _may_go(self, key: Hashable) -> bool:
        least, found = self.node.guaranteed_group_size, self.groups[key]
        if least is None or len(found) >= least:
            return True
        if not self.node.drop_remaining:
            raise RuntimeError(
                f"Failed to group items: {self.waiting} are waiting, as many as buffer_size allows, and the largest "
                f"group, of key {key!r}, has {len(found)} of the {least} that are guaranteed. Raise buffer_size, lower "
                "guaranteed_group_size or pass drop_remaining=True"
            )
        self._taken(key)
        return False

    def _taken(self, key: Hashable) -> Any:
        items = self.groups.pop(key)
        self.waiting -= len(items)
        return (key, DataChunk(items)) if self.node.keep_key else DataChunk(items)


@functional_datapipe("groupby")
class Grouper(OneInput[Any]):
    """Gathers the items that have one key, as ``group_key_fn`` tells it, into lists; with ``keep_key`` into pairs
    (key, list). A key that is numpy's, or a tensor of no dimension, becomes Python's.

    A group is handed out when it has ``group_size`` items. When ``buffer_size`` items are waiting, the largest group is
    handed out if it has ``guaranteed_group_size`` items (by default ``group_size``; any number if neither is given); a
    smaller one is dropped with ``drop_remaining``, and else an error. What is left at the end comes group by group, in
    the order in which they began.

    State: the groups that are waiting, with their keys; that of ``group_key_fn`` if it has any.

    Raises: ValueError for sizes that do not fit each other; while iterating, RuntimeError if a group is too small when
    the buffer is full.
    """

    iterator = _GroupIterator

    def __init__(
        self,
        datapipe: IterDataPipe[T],
        group_key_fn: Callable[[T], Hashable],
        *,
        keep_key: bool = False,
        buffer_size: int = 10000,
        group_size: int | None = None,
        guaranteed_group_size: int | None = None,
        drop_remaining: bool = False,
    ) -> None:
        super().__init__(datapipe)
        check_columns("group_key_fn", group_key_fn, None)
        self.group_key_fn: Callable[[Any], Hashable] = group_key_fn
        self.keep_key = keep_key
        self.buffer_size = check_count("buffer_size", buffer_size, at_least=1)
        if group_size is not None:
            group_size = check_count("group_size", group_size, at_least=1, at_most=buffer_size)
        self.group_size = group_size
        if guaranteed_group_size is not None:
            if group_size is None:
                raise ValueError(f"guaranteed_group_size={guaranteed_group_size} needs a group_size")
            guaranteed_group_size = check_count(
                "guaranteed_group_size", guaranteed_group_size, at_least=1, at_most=group_size
            )
        self.guaranteed_group_size = group_size if guaranteed_group_size is None else guaranteed_group_size
        self.drop_remaining = drop_remaining


_END: Any = object()
_DEEPEST = 32


class _ReBatchIterator(ItemIterator[Any]):
    node: ReBatcher
    keeps_items = True

    def __init__(self, node: ReBatcher, context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.parts: list[Any] = []  # batches that wait to be joined
        self.rows = 0  # in them
        self.loaded = False  # True while some of them are a state's, and have not been joined with others

    def get_state(self) -> dict[str, Any]:
        return {"parts": self.kept_items(self.parts)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.parts = stored_items(state, "parts")
        with refusing_misfits(node_name(self.node)):
            counts = [self._count(part) for part in self.parts]
            if len(self.parts) > 1:
                _joined(self.parts, self.node.collated)
        self.rows = sum(counts)
        self.loaded = bool(counts)
        if any(count == 0 for count in counts):
            raise StateError("a batch without rows is left over in the state")

    def run(self) -> Iterator[Any]:
        size, source = self.node.batch_size, self.source.items()
        while True:
            while self.rows >= size:
                yield self._take(size)
            batch = next(source, _END)
            if batch is _END:
                break
            rows = self._count(batch)
            if rows:
                self.parts.append(batch)
                self.rows += rows
        if self.rows and not self.node.drop_last:
            yield self._take(self.rows)

    def _count(self, batch: Any) -> int:
        rows = _rows(batch, self.node.collated)
        if rows is None:
            raise TypeError(
                f"rebatch needs batches, got {batch!r:.60} of type {type(batch).__name__}, which has no rows: put "
                "batch() before it"
            )
        return rows

    def _take(self, size: int) -> Any:
        """The first ``size`` rows; of the part that they end in, the rest stays."""
        collated, taken, wanted = self.node.collated, [], size
        while wanted:
            part = self.parts[0]
            rows = self._count(part)
            if rows <= wanted:
                taken.append(self.parts.pop(0))
                wanted -= rows
            else:
                taken.append(_cut(part, slice(0, wanted), collated))
                self.parts[0] = _cut(part, slice(wanted, rows), collated)
                wanted = 0
        self.rows -= size
        if len(taken) == 1:
            return taken[0]
        loaded, self.loaded = self.loaded, False
        with refusing_misfits(f"{node_name(self.node)} with these batches") if loaded else nullcontext():
            return _joined(taken, collated)

    def close(self) -> None:
        super().close()
        self.parts = []


@functional_datapipe("rebatch")
class ReBatcher(OneInput[Any]):
    """Cuts and joins batches so that each has ``batch_size`` rows; a shorter last one is left out with ``drop_last``.

    A batch is a list of samples (as ``batch`` makes it, and of no other type than a list), or what a ``collate`` makes
    of one: a tensor, an array, or a dict or tuple of these and of lists, all with as many rows in their first
    dimension. ``collated=True`` takes lists for tuples as well, since torch's ``default_collate`` makes lists of
    tuples.

    State: the rows that are left over.

    Raises: ValueError if ``batch_size`` is below 1. While iterating: TypeError for an item that is no batch, and for
    arrays of several types in one batch; ValueError if its parts have several numbers of rows.
    """

    iterator = _ReBatchIterator

    def __init__(
        self, datapipe: IterDataPipe[Any], batch_size: int, drop_last: bool = False, *, collated: bool = False
    ) -> None:
        super().__init__(datapipe)
        self.batch_size = check_count("batch_size", batch_size, at_least=1)
        self.drop_last = drop_last
        self.collated = collated


def _columns(batch: Any, collated: bool) -> list[Any] | None:
    """The parts of a batch that have the rows; None if it is one itself."""
    if isinstance(batch, Mapping):
        return list(batch.values())
    if isinstance(batch, tuple) or (collated and type(batch) is list and any(map(_has_rows, batch))):
        return list(batch)
    return None


def _has_rows(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray | Mapping | tuple | list)


def _rows(batch: Any, collated: bool, depth: int = 0) -> int | None:
    columns = _columns(batch, collated)
    if columns is None:
        if isinstance(batch, torch.Tensor | np.ndarray):
            return len(batch) if batch.ndim else None
        return len(batch) if isinstance(batch, list) else None
    counts = {_rows(column, collated, depth + 1) for column in columns} if depth < _DEEPEST else {None}
    if len(counts) > 1:
        found = sorted(str(count) for count in counts)
        raise ValueError(f"the parts of a batch have {' and '.join(found)} rows: {type(batch).__name__} {batch!r:.80}")
    return counts.pop() if counts else None


def _made_as(batch: Any, columns: list[Any]) -> Any:
    if isinstance(batch, Mapping):
        pairs = dict(zip(batch, columns))
        return pairs if type(batch) is dict else type(batch)(pairs)  # type: ignore[call-arg]
    if isinstance(batch, list):
        return columns
    return type(batch)(*columns) if hasattr(batch, "_fields") else tuple(columns)


def _cut(batch: Any, rows: slice, collated: bool) -> Any:
    columns = _columns(batch, collated)
    if columns is None:
        return type(batch)(batch[rows]) if isinstance(batch, DataChunk) else batch[rows]
    return _made_as(batch, [_cut(column, rows, collated) for column in columns])


def _check_types(batches: list[Any]) -> None:
    """Raises: TypeError for arrays or tensors of several types, as joining would change their numbers."""
    dtypes = {str(batch.dtype) for batch in batches if isinstance(batch, torch.Tensor)}
    dtypes |= {  # texts and bytes are of one type, whatever their lengths
        batch.dtype.kind if batch.dtype.kind in "SU" else str(batch.dtype)
        for batch in batches
        if isinstance(batch, np.ndarray)
    }
    if len(dtypes) > 1:
        raise TypeError(
            f"rebatch cannot join batches that are not alike: arrays of {' and '.join(sorted(dtypes))}, of which one "
            "type would change numbers of the other. Give them one type before, in map()"
        )


def _joined(batches: list[Any], collated: bool) -> Any:
    """Raises: TypeError, ValueError and the like for batches that are not alike."""
    first = batches[0]
    columns = [_columns(batch, collated) for batch in batches]
    if any(type(batch) is not type(first) for batch in batches) or any(
        (column is None) != (columns[0] is None) or len(column or ()) != len(columns[0] or ()) for column in columns
    ):
        kinds = sorted({type(batch).__name__ for batch in batches})
        raise TypeError(f"rebatch cannot join batches that are not alike: {' and '.join(kinds)} {batches!r:.80}")
    if columns[0] is None:
        _check_types(batches)
        if isinstance(first, torch.Tensor):
            return torch.cat(batches)
        if isinstance(first, np.ndarray):
            return np.concatenate(batches)
        rows = [row for batch in batches for row in batch]
        return type(first)(rows) if isinstance(first, DataChunk) else rows
    if isinstance(first, Mapping):
        joined = [_joined([batch[name] for batch in batches], collated) for name in first]
    else:
        joined = [_joined([batch[index] for batch in batches], collated) for index in range(len(first))]
    return _made_as(first, joined)


class _UnBatchIterator(NodeIterator[Any]):
    node: UnBatcher
    keeps_items = True

    def __init__(self, node: UnBatcher, context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.parts: list[Any] = []
        self.handed_out = 0  # how many of the parts

    def get_state(self) -> dict[str, Any]:
        return {"left": self.kept_items(self.parts[self.handed_out :])}

    def set_state(self, state: dict[str, Any]) -> None:
        self.parts = stored_items(state, "left")

    def run(self) -> Iterator[Any]:
        yield from self._hand_out()
        level = self.node.unbatch_level
        for item in self.source.items():
            self.parts = separated(list(self._flat(item, level)))
            self.handed_out = 0
            yield from self._hand_out()

    def leave_out(self) -> bool:
        self.parts = []
        return True

    def _hand_out(self) -> Iterator[Any]:
        for part in self.parts:
            self.handed_out += 1
            yield part

    def _flat(self, item: Any, level: int) -> Iterator[Any]:
        if level == 0 or (level < 0 and not isinstance(item, list)):
            yield item
        elif isinstance(item, list):
            for part in item:
                yield from self._flat(part, level - 1 if level > 0 else level)
        else:
            raise IndexError(
                f"unbatch(unbatch_level={self.node.unbatch_level}) goes deeper than the items: found a "
                f"{type(item).__name__} where a list was expected. Use a smaller level, or -1 for all there are"
            )


@functional_datapipe("unbatch")
class UnBatcher(OneInput[Any]):
    """Takes lists apart, ``unbatch_level`` levels deep (-1: all); tuples, arrays and tensors are left whole.

    State: what is left of the list being taken apart.

    Raises: ValueError if ``unbatch_level`` is below -1; IndexError, while iterating, if an item has fewer levels.
    """

    iterator = _UnBatchIterator

    def __init__(self, datapipe: IterDataPipe[Any], unbatch_level: int = 1) -> None:
        super().__init__(datapipe)
        self.unbatch_level = check_count("unbatch_level", unbatch_level, at_least=-1)
