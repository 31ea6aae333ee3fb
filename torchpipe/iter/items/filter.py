"""``filter``: keep the items that a function says yes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

import torch

from torchpipe.formats.storage.streams import close_streams
from torchpipe.iter._shared.bases import ItemIterator, OneInput
from torchpipe.iter._shared.columns import with_columns
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.plain import plain
from torchpipe.node.traits import callable_name
from torchpipe.node.validate import check_columns

__all__ = ["Filter"]

T = TypeVar("T")


class _FilterIterator(ItemIterator[T]):
    def __init__(self, node: Filter[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.filter_fn = self.with_retries(node.filter_fn)
        self.wanted = with_columns(self.filter_fn, node.input_col)

    def run(self) -> Iterator[T]:
        wanted = self.wanted
        for item in self.source.items():
            answer = wanted(item)
            if answer is True or (answer is not False and self._truth(answer)):
                yield item
            else:
                close_streams(item)

    def _truth(self, answer: Any) -> bool:
        found = plain(answer.reshape(()) if isinstance(answer, torch.Tensor) and answer.numel() == 1 else answer)
        if type(found) is bool:
            return found
        raise ValueError(
            f"filter_fn must return True or False, {callable_name(self.filter_fn)} returned {answer!r} of type "
            f"{type(answer).__name__}: is a return or a comparison missing?"
        )


@functional_datapipe("filter")
class Filter(OneInput[T]):
    """Hands on the items for which ``filter_fn`` returns True, in order; open streams in the others are closed.

    With ``input_col`` (an index or key, or a list of them) the function is called with those parts of the item.

    State: that of ``filter_fn`` if it has any. It has no length.

    Raises: TypeError if ``filter_fn`` is no function; ValueError if it cannot take the columns or, while iterating,
    returns something else than a truth value (a forgotten ``return`` gives None).
    """

    iterator = _FilterIterator
    names_files = True  # if its input does

    @overload
    def __init__(self, datapipe: IterDataPipe[T], filter_fn: Callable[[T], Any]) -> None: ...
    @overload
    def __init__(self, datapipe: IterDataPipe[T], filter_fn: Callable[..., Any], input_col: Any) -> None: ...
    def __init__(self, datapipe: IterDataPipe[T], filter_fn: Callable[..., Any], input_col: Any = None) -> None:
        super().__init__(datapipe)
        check_columns("filter_fn", filter_fn, input_col)
        self.filter_fn = filter_fn
        self.input_col = input_col
