"""Batches, and their rows and columns.

- ``map_batches`` and ``async_map_batches``: a function of several items at once.
- ``bucketbatch``: batches of items of like size, made of other nodes.
- ``in_batch_shuffle``: mix the order of the items within each batch.
- ``max_token_bucketize``: batches of items of like length, of so many tokens.
- ``rows2columnar``: batches of rows become columns.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torchpipe.iter._shared.bases import (
    CountingIterator,
    ItemIterator,
    Itemwise,
    OneInput,
    OnePerItem,
    Switchable,
    apply_to_columns,
    form_on,
    single_output,
    with_columns,
)
from torchpipe.iter._shared.batches import check_same_fields, note_dropped
from torchpipe.iter._shared.expanding import ExpandingIterator
from torchpipe.node.context import Context
from torchpipe.node.datapipe import DataChunk, IterDataPipe, functional_datapipe
from torchpipe.node.function_results import checked_size, length_of
from torchpipe.node.iterator import stored_count, stored_items
from torchpipe.node.traits import callable_name
from torchpipe.node.validate import check_columns, check_count, check_function, check_input
from torchpipe.randomness.seeds import IndexStream

__all__ = ["BatchAsyncMapper", "BatchMapper", "BucketBatcher", "InBatchShuffler", "MaxTokenBucketizer", "Rows2Columnar"]

T = TypeVar("T")
R = TypeVar("R")


class _BatchMapIterator(ExpandingIterator[R]):
    node: BatchMapper[R]
    users_parts = True

    def __init__(self, node: BatchMapper[R], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.fn = self.with_retries(node.fn)
        self.gathered = 1

    def items_in_hand(self, of_input: bool) -> int:
        return self.gathered

    def expand(self, item: Any) -> Iterable[R]:
        self.gathered = len(item)
        column = self.node.input_col
        if isinstance(column, list | tuple):
            item = [[part[name] for name in column] for part in item]
        elif column is not None:
            item = [part[column] for part in item]
        result: Any = self.fn(item)
        if not hasattr(result, "__iter__"):
            raise TypeError(
                f"map_batches needs something iterable, {callable_name(self.fn)} returned {result!r:.200} of type "
                f"{type(result).__name__}"
            )
        return list(result) if isinstance(result, list | tuple | dict) else iter(result)


@functional_datapipe("map_batches")
class BatchMapper(OneInput[R]):
    """Calls ``fn`` with lists of ``batch_size`` consecutive items, and hands out the items of its results one by one.

    With ``input_col`` the list has those parts of the items: one each, or a list of several.

    State: what is left of the result, if it is a list; within another iterable, as with ``flatmap``.

    Raises: ValueError if ``batch_size`` is below 1; TypeError if ``fn`` is no function or, while iterating, returns
    nothing iterable.
    """

    iterator = _BatchMapIterator

    def __init__(
        self,
        datapipe: IterDataPipe[T],
        fn: Callable[[list[Any]], Iterable[R]],
        batch_size: int,
        input_col: Any = None,
    ) -> None:
        check_input("map_batches", datapipe)
        check_columns("fn", fn, None)
        batches = form_on(datapipe, "batch")(check_count("batch_size", batch_size, at_least=1))
        super().__init__(batches)
        self.fn = fn
        self.input_col = input_col


@functional_datapipe("async_map_batches")
class BatchAsyncMapper(IterDataPipe[R]):
    """Awaits ``async_fn`` of all items of a batch at once, at most ``max_concurrency`` at a time, in order.

    ``input_col`` and ``output_col`` as with ``map``. With ``flatten`` the results are handed out one by one, else in
    lists of ``batch_size``. One event loop serves a whole pass.

    State: what is left of a batch; between two of them nothing.

    Raises: ValueError if ``async_fn`` is no coroutine function, for sizes below 1 and columns that do not fit.
    """

    def __new__(  # type: ignore[misc]
        cls,
        source_datapipe: IterDataPipe[T],
        async_fn: Callable[..., Awaitable[R]],
        batch_size: int,
        input_col: Any = None,
        output_col: Any = None,
        max_concurrency: int = 32,
        flatten: bool = True,
    ) -> IterDataPipe[R]:
        check_input("async_map_batches", source_datapipe)
        batches = form_on(source_datapipe, "batch")(check_count("batch_size", batch_size, at_least=1))
        results: Any = _AsyncBatches(batches, async_fn, input_col, output_col, max_concurrency)
        if not flatten:
            return results  # type: ignore[no-any-return]
        try:
            length = len(source_datapipe)
        except (TypeError, NotImplementedError):
            return results.flatmap()  # type: ignore[no-any-return]
        return results.flatmap().set_length(length)  # type: ignore[no-any-return]


class _AsyncIterator(ItemIterator[list[Any]]):
    node: _AsyncBatches
    gathered = 1

    def items_in_hand(self, of_input: bool) -> int:
        return 1 if of_input else self.gathered

    def run(self) -> Iterator[list[Any]]:
        loop = asyncio.new_event_loop()
        try:
            for batch in self.source.items():
                self.gathered = len(batch)
                yield loop.run_until_complete(self._results(batch))
        finally:
            _close(loop)

    async def _results(self, batch: list[Any]) -> list[Any]:
        room = asyncio.Semaphore(self.node.max_concurrency)
        call = with_columns(self.node.async_fn, self.node.input_col)

        async def one(item: Any) -> Any:
            async with room:
                result = await call(item)
            return apply_to_columns(lambda *_: result, self.node.input_col, self.node.output_col)(item)

        tasks = [asyncio.ensure_future(one(item)) for item in batch]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise


class _AsyncBatches(OnePerItem[list[Any]]):
    iterator = _AsyncIterator
    one_to_one = True
    form = "async_map_batches"
    node_title = "async_map_batches()"
    fingerprint_ignores = ("max_concurrency",)

    def __init__(
        self,
        source_datapipe: IterDataPipe[Any],
        async_fn: Callable[..., Awaitable[Any]],
        input_col: Any,
        output_col: Any,
        max_concurrency: int,
    ) -> None:
        if not inspect.iscoroutinefunction(async_fn):
            raise ValueError(f"async_fn must be a function defined by async def, got {async_fn!r}")
        check_columns("async_fn", async_fn, input_col)
        super().__init__(source_datapipe)
        self.async_fn = async_fn
        self.input_col = input_col
        self.output_col = single_output(input_col, output_col)
        self.max_concurrency = check_count("max_concurrency", max_concurrency, at_least=1)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """Also where a pass that was dropped is collected in the midst of another loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


@functional_datapipe("bucketbatch")
class BucketBatcher(IterDataPipe[list[T]]):
    """Batches of items that ``sort_key`` puts next to each other: a chain of ``shuffle``, ``map`` and ``batch``.

    Buckets of ``batch_num`` batches are sorted by ``sort_key``, a function from a list of items to the sorted list
    (``functools.partial(sorted, key=len)``), and cut into batches of ``batch_size``; before that, ``bucket_num``
    buckets are mixed. The batches are mixed as well. ``use_in_batch_shuffle`` mixes pools one after the other; without
    it, a shuffle buffer slides over the stream. Without ``sort_key`` items are mixed and batched.

    State: that of the nodes it is made of; a pool of ``batch_size * batch_num * bucket_num`` items is in it.

    Raises: ValueError for a size below 1; TypeError if ``sort_key`` is no function.
    """

    def __new__(  # type: ignore[misc]
        cls,
        datapipe: IterDataPipe[T],
        batch_size: int,
        drop_last: bool = False,
        batch_num: int = 100,
        bucket_num: int = 1,
        sort_key: Callable[[list[Any]], Any] | None = None,
        use_in_batch_shuffle: bool = True,
    ) -> IterDataPipe[list[T]]:
        check_input("bucketbatch", datapipe)
        batch_size = check_count("batch_size", batch_size, at_least=1)
        batch_num = check_count("batch_num", batch_num, at_least=1)
        bucket_num = check_count("bucket_num", bucket_num, at_least=1)
        chain: Any = datapipe
        pool = batch_size * batch_num * bucket_num
        if bucket_num > 1 or sort_key is None:
            chain = _mixed(chain, pool, use_in_batch_shuffle, pool)
        if sort_key is None:
            return chain.batch(batch_size, drop_last=drop_last)  # type: ignore[no-any-return]
        check_function("sort_key", sort_key)
        chain = chain.batch(batch_size * batch_num).map(sort_key).unbatch().batch(batch_size, drop_last=drop_last)
        return _mixed(chain, bucket_num, use_in_batch_shuffle, batch_size * batch_num)  # type: ignore[no-any-return]


def _mixed(chain: Any, pool: int, by_pools: bool, buffer_size: int) -> Any:
    if by_pools:
        return chain.batch(pool).in_batch_shuffle().unbatch()
    return chain.shuffle(buffer_size=buffer_size)


class _InBatchIterator(CountingIterator[list[T]]):
    node: InBatchShuffler[T]

    def __init__(self, node: InBatchShuffler[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.random = IndexStream(node.random_key(context))

    def get_state(self) -> dict[str, Any]:
        return {"random": self.random.state_dict()} if self.node.enabled else {}

    def set_state(self, state: dict[str, Any]) -> None:
        self.node.check_switched(state)
        if self.node.enabled:
            self.random.load_state_dict(state["random"])

    def run(self) -> Iterator[list[T]]:
        if not self.node.enabled:
            yield from self.source.items()
            return
        index = self.random.index
        for batch in self.source.items():
            mixed = DataChunk(batch)
            for at in range(len(mixed) - 1, 0, -1):  # Fisher and Yates
                other = index(at + 1)
                mixed[at], mixed[other] = mixed[other], mixed[at]
            del batch
            yield mixed
            del mixed


@functional_datapipe("in_batch_shuffle")
class InBatchShuffler(Switchable[list[T]]):
    """Hands on each batch with its items in random order, as a ``DataChunk``; every order has the same chance.

    State: a key and the number of draws.
    """

    iterator = _InBatchIterator

    def __init__(self, datapipe: IterDataPipe[Sequence[T]]) -> None:
        super().__init__(datapipe)

    def __len__(self) -> int:
        return len(self.source)


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


@functional_datapipe("rows2columnar")
class Rows2Columnar(Itemwise[dict[Any, list[Any]]]):
    """Makes of each batch of rows a dict from a column's name to the list of its values.

    Rows are dicts, whose ``column_names`` are taken (by default all), or lists and tuples, whose values are named by
    ``column_names`` in order.

    State: none of its own. Raises: while iterating, KeyError for a column that a row does not have or that
    only some have, ValueError for a
    row of another length than ``column_names``.
    """

    def __init__(self, source_datapipe: IterDataPipe[Sequence[Any]], column_names: Sequence[Any] | None = None) -> None:
        super().__init__(source_datapipe)
        self.column_names = () if column_names is None else tuple(column_names)

    def change(self, item: Any) -> dict[Any, list[Any]]:
        columns: dict[Any, list[Any]] = {}
        if not self.column_names and item and isinstance(item[0], dict):
            check_same_fields("rows2columnar", item)
        for row in item:
            for name, value in self._named(row):
                columns.setdefault(name, []).append(value)
        return columns

    def _named(self, row: Any) -> Iterator[tuple[Any, Any]]:
        names = self.column_names
        if isinstance(row, dict):
            missing = [name for name in names if name not in row]
            if missing:
                raise KeyError(f"rows2columnar found no column {missing[0]!r} in the row {row!r:.200}")
            return iter(row.items()) if not names else ((name, row[name]) for name in names)
        if not hasattr(row, "__len__"):
            raise TypeError(
                f"rows2columnar takes rows that are dicts or sequences, got {row!r:.200}: is a batch() missing?"
            )
        if len(row) != len(names):
            raise ValueError(
                f"rows2columnar got a row of {len(row)} values, {row!r:.200}, and {len(names)} column_names: "
                f"{names!r:.100}"
            )
        return zip(names, row)
