"""Items one by one.

- ``header``: ``take`` by torchdata's name.
- ``in_memory_cache``: items of the first epoch are kept for later ones.
- ``add_index``: the number of each dict, within it.
- ``drop``, ``slice`` and ``flatten``: parts of tuples, lists and dicts.
- ``pin_memory``: tensors in page-locked memory, which move to a GPU quicker. Runs in the main process.
- ``Sampler``: the indices that a sampler of torch's gives.
- ``threadpool_map``: ``parallel_map`` by torchdata's name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

import torch
from torch.utils.data import SequentialSampler

from torchpipe.iter._shared.bases import CountingIterator, Itemwise, OnePerItem, form_on
from torchpipe.iter.limiting import Taker
from torchpipe.iter.parallel import MOST_THREADS, ParallelMapper
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.function_results import plain, plain_key
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_count, check_function, check_input
from torchpipe.utils import pin_memory_fn

__all__ = [
    "Dropper",
    "Flattener",
    "Header",
    "InMemoryCacheHolder",
    "IndexAdder",
    "PinMemory",
    "Sampler",
    "Slicer",
    "ThreadPoolMapper",
]

T = TypeVar("T")


@functional_datapipe("header")
class Header(Taker[T]):
    """``take`` under torchdata's name: the first ``limit`` items (None: all of them).

    State: the number of items handed out. Raises: ValueError if ``limit`` is negative.
    """

    def __init__(self, source_datapipe: IterDataPipe[T], limit: int | None = 10) -> None:
        most = None if limit is None else check_count("limit", limit, at_least=0)
        super().__init__(source_datapipe, most or 0)
        self.limit = most


@functional_datapipe("in_memory_cache")
class InMemoryCacheHolder(IterDataPipe[T]):
    """``cache`` in memory, of at most ``size`` megabytes (None: any number): its input is made once, and the same items
    come in every epoch. What is beyond ``size`` is made in every epoch.

    State: that of ``cache``. Raises: ValueError if ``size`` is negative.
    """

    def __new__(  # type: ignore[misc]
        cls, source_dp: IterDataPipe[T], size: int | None = None
    ) -> IterDataPipe[T]:
        check_input("in_memory_cache", source_dp)
        most = None if size is None else check_count("size", size, at_least=0) << 20
        return form_on(source_dp, "cache")(max_bytes=most)  # type: ignore[no-any-return]


class _IndexIterator(CountingIterator[dict[Any, Any]]):
    node: IndexAdder
    saved = ("number",)
    number = 0

    def run(self) -> Iterator[dict[Any, Any]]:
        for item in self.source.items():
            if not isinstance(item, dict):
                raise TypeError(f"add_index needs dicts, got {item!r:.200}: enumerate() numbers items of all kinds")
            self.number += 1
            yield {**item, self.node.index_name: self.number - 1}


@functional_datapipe("add_index")
class IndexAdder(OnePerItem[dict[Any, Any]]):
    """Adds to a copy of each dict its number in the stream, from 0 on, under the key ``index_name``.

    State: the next number. Raises: while iterating, TypeError for an item that is no dict.
    """

    iterator = _IndexIterator

    def __init__(self, source_datapipe: IterDataPipe[dict[Any, Any]], index_name: str = "index") -> None:
        super().__init__(source_datapipe)
        self.index_name = index_name


def _several(value: Any) -> tuple[Hashable, ...]:
    return tuple(dict.fromkeys(map(plain_key, value if isinstance(value, list) else [value])))


def _like(item: Any, parts: list[Any]) -> Any:
    return tuple(parts) if isinstance(item, tuple) else parts


def _check_parts(form: str, item: Any, parts: tuple[Hashable, ...]) -> None:
    """Raises: TypeError unless ``item`` is a tuple, list or dict; KeyError or IndexError for a part that it lacks."""
    if not isinstance(item, tuple | list | dict):
        raise TypeError(f"{form} needs tuples, lists or dicts, got {item!r:.200} of type {type(item).__name__}")
    for part in parts:
        if isinstance(item, dict):
            if part not in item:
                raise KeyError(f"{form} found no {part!r} in {item!r:.200}")
        elif not isinstance(part, int) or not 0 <= part < len(item):
            raise IndexError(f"{form} found no index {part!r} in {item!r:.200}, which has {len(item)}")


@functional_datapipe("drop")
class Dropper(Itemwise[Any]):
    """Leaves out the parts ``indices`` of each item: indices of tuples and lists, keys of dicts; one or several.

    State: none of its own. Raises: while iterating, IndexError or KeyError if an item lacks a part that is named,
    TypeError if it has no parts.
    """

    def __init__(self, datapipe: IterDataPipe[Any], indices: Hashable | list[Hashable]) -> None:
        super().__init__(datapipe)
        self.indices = _several(indices)

    def change(self, item: Any) -> Any:
        _check_parts("drop", item, self.indices)
        if isinstance(item, dict):
            return {key: value for key, value in item.items() if key not in self.indices}
        return _like(item, [value for index, value in enumerate(item) if index not in self.indices])


@functional_datapipe("slice")
class Slicer(Itemwise[Any]):
    """Keeps parts of each item: of tuples and lists ``item[index:stop:step]``, or the indices in a list ``index``, in
    their own order; of dicts the key ``index``, or the keys in a list of them.

    State: none of its own. Raises: ValueError for ``stop`` or ``step`` beside a list; while iterating, IndexError or
    KeyError if an item lacks a part that is named, TypeError if it has no parts.
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        index: Hashable | list[Hashable],
        stop: int | None = None,
        step: int | None = None,
    ) -> None:
        super().__init__(datapipe)
        self.named = isinstance(index, list)
        if self.named and (stop is not None or step is not None):
            raise ValueError(f"index={index!r} is a list of indices: leave out stop={stop!r} and step={step!r}")
        step = None if step is None else check_count("step", step, at_least=1)
        self.index = _several(index) if self.named else plain_key(index)
        self.stop = plain(stop)
        self.step = step

    def change(self, item: Any) -> Any:
        parts: Any = self.index if self.named else (self.index,) if isinstance(item, dict) else ()
        _check_parts("slice", item, parts)
        if isinstance(item, dict):
            return {key: value for key, value in item.items() if key in parts}
        if self.named:
            return _like(item, [value for index, value in enumerate(item) if index in parts])
        return item[self.index : self.stop : self.step]


@functional_datapipe("flatten")
class Flattener(Itemwise[Any]):
    """Puts what stands in the parts ``indices`` of each item in their place: lists and tuples into lists and tuples,
    dicts into dicts. Without ``indices``, in all parts; with an empty list, in none. One level of them.

    State: none of its own. Raises: while iterating, IndexError or KeyError if an item lacks a part that is named,
    TypeError if it has no parts, ValueError if a key would stand twice in a dict.
    """

    def __init__(self, datapipe: IterDataPipe[Any], indices: Hashable | list[Hashable] | None = None) -> None:
        super().__init__(datapipe)
        self.indices = None if indices is None else _several(indices)

    def change(self, item: Any) -> Any:
        _check_parts("flatten", item, self.indices or ())
        if isinstance(item, dict):
            pairs: list[Any] = []
            for key, value in item.items():
                pairs.extend(value.items() if self._flattens(key) and isinstance(value, dict) else [(key, value)])
            flat = dict(pairs)
            if len(flat) < len(pairs):
                raise ValueError(f"flatten would put a key twice into {item!r:.200}: say which parts, by indices=")
            return flat
        parts: list[Any] = []
        for index, value in enumerate(item):
            parts.extend(value if self._flattens(index) and isinstance(value, list | tuple) else [value])
        return _like(item, parts)

    def _flattens(self, part: Hashable) -> bool:
        return self.indices is None or part in self.indices


@functional_datapipe("pin_memory")
class PinMemory(IterDataPipe[T]):
    """Puts each item through ``pin_memory_fn(item, device)``, up to two items ahead where it runs in a thread.

    ``device`` is the GPU that they are for, by default the current one. ``to_device`` does this and the rest of the
    way.

    State: as that of ``prefetch``, which it ends with. Raises: RuntimeError without CUDA; TypeError if
    ``pin_memory_fn`` is no function.
    """

    def __new__(  # type: ignore[misc]
        cls,
        source_datapipe: IterDataPipe[T],
        device: Any = None,
        pin_memory_fn: Callable[[Any, Any], Any] = pin_memory_fn,
    ) -> IterDataPipe[T]:
        check_input("pin_memory", source_datapipe)
        check_function("pin_memory_fn", pin_memory_fn)
        if not torch.cuda.is_available():
            raise RuntimeError("``pin_memory`` can only be used when CUDA is available.")
        device = torch.cuda.current_device() if device is None else device
        pinned = _Pinned(source_datapipe, device, pin_memory_fn)
        return form_on(pinned, "prefetch")(2)  # type: ignore[no-any-return]


class _PinIterator(NodeIterator[Any]):
    node: _Pinned

    def run(self) -> Any:
        fn, device = self.node.pin_memory_fn, self.node.device
        return (fn(item, device) for item in self.source.items())


class _Pinned(OnePerItem[Any]):
    iterator = _PinIterator
    form = "pin_memory"
    node_title = "pin_memory()"
    alters_stream = False
    one_to_one = True
    runs_in_main = True

    def __init__(
        self, source_datapipe: IterDataPipe[Any], device: Any, pin_memory_fn: Callable[[Any, Any], Any]
    ) -> None:
        super().__init__(source_datapipe)
        self.device = device
        self.pin_memory_fn = pin_memory_fn


class Sampler(IterDataPipe[Any]):
    """Yields what ``sampler(*sampler_args, data_source=datapipe, **sampler_kwargs)`` gives: indices, not items.

    As torch's node of this name. A sampler of a sequence is better wrapped itself: ``IterableWrapper(sampler)``.

    State: the sampler's or its iterator's, if they have one; else the position, reached by replay. Raises: TypeError if
    ``datapipe`` has no ``len()``.
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        sampler: Callable[..., Any] = SequentialSampler,
        sampler_args: Sequence[Any] | None = None,
        sampler_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        check_input("Sampler", datapipe)
        len(datapipe)
        self.source = datapipe
        self.arguments = (tuple(sampler_args or ()), dict(sampler_kwargs or {}))  # samplers keep them to themselves
        self.sampler = sampler(*(sampler_args or ()), **{**(sampler_kwargs or {}), "data_source": datapipe})

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.sampler)


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
