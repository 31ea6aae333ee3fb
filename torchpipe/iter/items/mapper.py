"""``map``: apply a function to every item."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

from torchpipe.iter._shared.bases import ItemIterator, OnePerItem
from torchpipe.iter._shared.columns import apply_to_columns, single_output
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_columns

__all__ = ["Mapper"]

T = TypeVar("T")
R = TypeVar("R")


class _MapIterator(ItemIterator[R]):
    def __init__(self, node: Mapper[R], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.fn: Callable[[Any], R] = apply_to_columns(self.with_retries(node.fn), node.input_col, node.output_col)

    def run(self) -> Iterator[R]:
        fn = self.fn
        for item in self.source.items():
            yield fn(item)


@functional_datapipe("map")
class Mapper(OnePerItem[R]):
    """Applies ``fn`` to every item.

    With ``input_col`` (an index or key, or a list of them) ``fn`` is called with those parts of the item, and its
    result goes into a copy of the item: into ``output_col`` (-1 appends), by default in place of the first of
    ``input_col``, the others being removed.

    State: that of ``fn`` if it has ``state_dict``/``load_state_dict``. Exceptions of ``fn`` pass unchanged.

    Raises: TypeError if ``fn`` is no function; ValueError if it cannot take the columns, or for ``output_col`` alone.
    """

    iterator = _MapIterator
    one_to_one = True

    @overload
    def __init__(self, datapipe: IterDataPipe[T], fn: Callable[[T], R]) -> None: ...
    @overload
    def __init__(
        self: Mapper[Any], datapipe: IterDataPipe[Any], fn: Callable[..., Any], input_col: Any, output_col: Any = None
    ) -> None: ...
    def __init__(
        self, datapipe: IterDataPipe[Any], fn: Callable[..., Any], input_col: Any = None, output_col: Any = None
    ) -> None:
        super().__init__(datapipe)
        check_columns("fn", fn, input_col)
        self.fn = fn
        self.input_col = input_col
        self.output_col = single_output(input_col, output_col)
