"""``flatmap``: a function makes many items of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, TypeVar, overload

from torchpipe.iter._shared.bases import OneInput
from torchpipe.iter._shared.columns import with_columns
from torchpipe.iter._shared.expanding import ExpandingIterator
from torchpipe.iter._shared.positioned import positioned
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import is_node
from torchpipe.node.validate import check_columns

__all__ = ["FlatMapper"]

T = TypeVar("T")
R = TypeVar("R")


def _unchanged(*parts: Any) -> Any:
    return parts[0] if len(parts) == 1 else parts


class _FlatMapIterator(ExpandingIterator[R]):
    users_parts = True

    def __init__(self, node: FlatMapper[R], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.fn = self.with_retries(_unchanged if node.fn is None else node.fn)
        self.call = with_columns(self.fn, node.input_col)

    def expand(self, item: Any) -> list[R] | Iterator[R]:
        result = self.call(item)
        if is_node(result):
            return self.context.for_opened(self.node, result, self._number).iterate(result)
        parts: list[R] | Iterator[R] = positioned("flatmap", result, self.fn)
        return parts

    def close(self) -> None:
        with ExitStack() as stack:
            if isinstance(self._current, NodeIterator):
                stack.callback(self._current.close)
            stack.callback(super().close)


@functional_datapipe("flatmap")
class FlatMapper(OneInput[R]):
    """Applies ``fn`` to every item and hands out the items of its results, one after the other.

    Results may be containers or iterators, also endless ones. Without ``fn`` the items themselves are taken apart. With
    ``input_col`` (an index or key, or a list of them) ``fn`` is called with those parts of the item; without ``fn``,
    one part is taken apart, several are handed out one after the other.

    State: after a container, what is left of it. Within an iterator, the state of the input before the item, the global
    random states, and where the iterator stands: ``fn`` is called again, so it should neither change its argument nor
    share global random numbers with other functions. An iterator with ``state_dict`` and ``load_state_dict`` goes there
    at once, and so do sequences and open files that can seek. Of others, generators say, the results handed out are
    made again and dropped, which a :class:`~torchpipe.ReplayWarning` announces with their number. It has no length.

    Raises: TypeError if ``fn`` is no function or, while iterating, returns nothing iterable.
    """

    iterator = _FlatMapIterator

    @overload
    def __init__(self, datapipe: IterDataPipe[Iterable[R]]) -> None: ...
    @overload
    def __init__(self: FlatMapper[Any], datapipe: IterDataPipe[Any], *, input_col: Any) -> None: ...
    @overload
    def __init__(self, datapipe: IterDataPipe[T], fn: Callable[[T], Iterable[R]]) -> None: ...
    @overload
    def __init__(self, datapipe: IterDataPipe[Any], fn: Callable[..., Iterable[R]], input_col: Any) -> None: ...

    def __init__(
        self, datapipe: IterDataPipe[Any], fn: Callable[..., Iterable[R]] | None = None, input_col: Any = None
    ) -> None:
        super().__init__(datapipe)
        check_columns("fn", _unchanged if fn is None else fn, input_col)
        self.fn = fn
        self.input_col = input_col
