"""``map_batches`` and ``async_map_batches``: a function of several items at once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

from torchpipe.iter._shared.bases import (
    ItemIterator,
    OneInput,
    OnePerItem,
    apply_to_columns,
    form_on,
    single_output,
    with_columns,
)
from torchpipe.iter._shared.expanding import ExpandingIterator
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.traits import callable_name
from torchpipe.node.validate import check_columns, check_count, check_input

__all__ = ["BatchAsyncMapper", "BatchMapper"]

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
