"""``collate``: make a batch of tensors from a list of items. Runs wherever its shard runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, overload

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from torchpipe.node.context import Context, Memory
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.failure import add_note
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_columns, check_input
from torchpipe.state.tensors import is_plain

__all__ = ["Collator", "default_collate_in", "stack_without_files"]

_LARGE_BYTES = 64 << 10  # what is smaller is quicker made anywhere and copied
_TENSORS = {torch.Tensor}

T = TypeVar("T")
R = TypeVar("R")


@functional_datapipe("collate")
class Collator(IterDataPipe[R]):
    """Applies ``collate_fn``, or else ``conversion``, to every item, usually a list from ``batch``.

    The default is :func:`torch.utils.data.default_collate`, which stacks numbers, arrays and tensors into tensors. In
    worker processes it stacks large tensors straight into shared memory.

    State: that of the function if it has any.

    Raises: TypeError if the function cannot be called (the dict form of ``conversion`` was for torcharrow data frames,
    which are no longer made); ValueError if it does not take one argument.
    """

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
        check_input("collate", datapipe)
        fn = conversion if collate_fn is None else collate_fn
        check_columns("conversion" if collate_fn is None else "collate_fn", fn, None)
        self.datapipe = datapipe
        self.fn: Callable[[Any], R] = fn

    def __len__(self) -> int:
        return len(self.datapipe)

    def iterate(self, context: Context) -> NodeIterator[R]:
        return _CollateIterator(self, context)


class _CollateIterator(NodeIterator[R]):
    def __init__(self, node: Collator[R], context: Context) -> None:
        super().__init__(node, context, node.datapipe)
        if node.fn is default_collate:
            self.fn: Any = partial(_collate_batch, default_collate_in(context.memory))
        else:
            self.fn = self.adopt(node.fn)

    def run(self) -> Iterator[R]:
        fn = self.fn
        for item in self.source.items():
            yield fn(item)  # and keeps nothing of it: what was made in shared memory is sent from there


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


def default_collate_in(memory: Memory | None) -> Callable[[Any], Any]:
    """torch's ``default_collate``, which stacks large tensors in ``memory``, from where they travel without a copy.

    One that the user has taught another way of stacking tensors, by ``default_collate_fn_map``, is left to that.
    """
    if memory is None or default_collate_fn_map.get(torch.Tensor) not in (collate_tensor_fn, _stack):
        return default_collate
    return partial(collate, collate_fn_map={**default_collate_fn_map, torch.Tensor: partial(_stack_in, memory)})


def stack_without_files() -> None:
    """Let ``default_collate`` in this worker process, whoever calls it, make no file of shared memory for each tensor.

    torch's does so where ``get_worker_info()`` says that it is in a worker: for torch's queues, and of no use here. A
    file costs 50 us.
    """
    if default_collate_fn_map.get(torch.Tensor) is collate_tensor_fn:
        default_collate_fn_map[torch.Tensor] = _stack


def _stack_in(memory: Memory | None, batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    """What ``default_collate`` makes of tensors; large ones in ``memory``, where that is the same."""
    first = batch[0]
    if set(map(type, batch)) == _TENSORS and is_plain(first):
        place = None
        size_bytes = len(batch) * first.nbytes
        if memory is not None and size_bytes >= _LARGE_BYTES and all(_stacks_as_it_is(item, first) for item in batch):
            place = memory(size_bytes)
        if place is not None:
            out = torch.frombuffer(place, dtype=first.dtype).view(len(batch), *first.shape)
            return torch.stack(batch, 0, out=out)
        stacked = torch.stack(batch, 0)
        if stacked.dtype is first.dtype and not stacked.requires_grad:
            return stacked
    made: torch.Tensor = collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return made


_stack = partial(_stack_in, None)


def _stacks_as_it_is(item: torch.Tensor, first: torch.Tensor) -> bool:
    return is_plain(item) and not item.requires_grad and item.dtype is first.dtype and item.shape == first.shape
