"""``collate``: make a batch of tensors from a list of items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, overload

from torch.utils.data import default_collate

from torchpipe.errors import add_note
from torchpipe.iter._shared.bases import ItemIterator, OnePerItem
from torchpipe.iter._shared.collating import default_collate_in, makes_new_tensors
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_columns

__all__ = ["Collator"]

T = TypeVar("T")
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
