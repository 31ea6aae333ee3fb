"""``threadpool_map``: ``parallel_map`` by torchdata's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from torchpipe.iter.parallel import MOST_THREADS, ParallelMapper
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count, check_input

__all__ = ["ThreadPoolMapper"]

T = TypeVar("T")
R = TypeVar("R")


@functional_datapipe("threadpool_map")
class ThreadPoolMapper(ParallelMapper[R]):
    """``parallel_map`` with torchdata's arguments: ``scheduled_tasks`` items are pulled ahead, for ``max_workers``.

    These are 4 threads by default. Other arguments of Python's thread pool are refused, as it is not used.
    """

    @overload
    def __init__(
        self,
        source_datapipe: IterDataPipe[T],
        fn: Callable[[T], R],
        *,
        scheduled_tasks: int = ...,
        max_workers: int | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: ThreadPoolMapper[Any],
        source_datapipe: IterDataPipe[Any],
        fn: Callable[..., Any],
        input_col: Any = ...,
        output_col: Any = ...,
        scheduled_tasks: int = ...,
        max_workers: int | None = ...,
        **threadpool_kwargs: Any,
    ) -> None: ...
    def __init__(
        self,
        source_datapipe: IterDataPipe[Any],
        fn: Callable[..., Any],
        input_col: Any = None,
        output_col: Any = None,
        scheduled_tasks: int = 128,
        max_workers: int | None = None,
        **threadpool_kwargs: Any,
    ) -> None:
        check_input("threadpool_map", source_datapipe)
        if threadpool_kwargs:
            raise TypeError(
                f"threadpool_map takes no {', '.join(threadpool_kwargs)}: its threads are not Python's pool"
            )
        threads = 4 if max_workers is None else max_workers
        super().__init__(
            source_datapipe,
            fn,
            input_col,
            output_col,
            num_threads=check_count("max_workers", threads, at_least=1, at_most=MOST_THREADS),
            buffer_size=check_count("scheduled_tasks", scheduled_tasks, at_least=1),
        )
