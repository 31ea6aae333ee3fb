"""``threadpool_map``: ``parallel_map`` by torchdata's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torchpipe.iter.running.parallel_mapper import ParallelMapper
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count, check_input

__all__ = ["ThreadPoolMapper"]

R = TypeVar("R")


@functional_datapipe("threadpool_map")
class ThreadPoolMapper(ParallelMapper[R]):
    """``parallel_map`` with torchdata's arguments: ``scheduled_tasks`` items are pulled ahead, for ``max_workers``.

    These are 4 threads by default. Other arguments of Python's thread pool are refused, as it is not used.
    """

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
        super().__init__(
            source_datapipe,
            fn,
            input_col,
            output_col,
            num_threads=4 if max_workers is None else check_count("max_workers", max_workers, at_least=1),
            buffer_size=check_count("scheduled_tasks", scheduled_tasks, at_least=1),
        )
