"""``filter``: keep the items that a function says yes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

import numpy as np
import torch

from torchpipe.formats.places.streams import close_streams
from torchpipe.iter._shared.columns import with_columns
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import callable_name
from torchpipe.node.validate import check_columns, check_input

__all__ = ["Filter"]

T = TypeVar("T")


@functional_datapipe("filter")
class Filter(IterDataPipe[T]):
    """Hands on the items for which ``filter_fn`` returns True, in order; open streams in the others are closed.

    With ``input_col`` (an index or key, or a list of them) the function is called with those parts of the item.

    State: that of ``filter_fn`` if it has any. It has no length.

    Raises: TypeError if ``filter_fn`` is no function; ValueError if it cannot take the columns or, while iterating,
    returns something else than a truth value (a forgotten ``return`` gives None).
    """

    thins = True
    names_files = True  # if its input does

    @overload
    def __init__(self, datapipe: IterDataPipe[T], filter_fn: Callable[[T], Any]) -> None: ...
    @overload
    def __init__(self, datapipe: IterDataPipe[T], filter_fn: Callable[..., Any], input_col: Any) -> None: ...
    def __init__(self, datapipe: IterDataPipe[T], filter_fn: Callable[..., Any], input_col: Any = None) -> None:
        check_input("filter", datapipe)
        check_columns("filter_fn", filter_fn, input_col)
        self.source = datapipe
        self.filter_fn = filter_fn
        self.input_col = input_col

    def iterate(self, context: Context) -> NodeIterator[T]:
        return _FilterIterator(self, context)


class _FilterIterator(NodeIterator[T]):
    def __init__(self, node: Filter[T], context: Context) -> None:
        super().__init__(node, context, node.source)
        self.filter_fn = self.adopt(node.filter_fn)
        self.wanted = with_columns(self.filter_fn, node.input_col)

    def run(self) -> Iterator[T]:
        wanted = self.wanted
        for item in self.source.items():
            answer = wanted(item)
            if answer is True or (answer is not False and self._truth(answer)):
                yield item
            else:
                close_streams(item)

    def leave_out(self) -> bool:
        return True

    def _truth(self, answer: Any) -> bool:
        if isinstance(answer, np.bool_) or (
            isinstance(answer, torch.Tensor) and answer.dtype is torch.bool and answer.numel() == 1
        ):
            return bool(answer)
        raise ValueError(
            f"filter_fn must return True or False, {callable_name(self.filter_fn)} returned {answer!r} of type "
            f"{type(answer).__name__}: is a return or a comparison missing?"
        )
