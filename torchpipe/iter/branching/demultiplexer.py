"""``demux``: every item for one of several branches."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from torchpipe.formats.storage.streams import close_streams
from torchpipe.iter._shared.shared_pass import Container
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.plain import plain
from torchpipe.node.traits import callable_name
from torchpipe.node.validate import check_columns, check_input

__all__ = ["Demultiplexer"]

T = TypeVar("T")


@functional_datapipe("demux")
class Demultiplexer(IterDataPipe[T]):
    """``num_instances`` branches, to which ``classifier_fn`` deals the items of the input: it returns a branch's
    number.

    The input is read once for all branches; items that come before their branch asks for them wait in a buffer of
    ``buffer_size`` items for all branches together (-1: any number, with a warning). Items of branches that nothing in
    the graph reads are left out, and so are those for which the function returns None, with ``drop_none``. The branches
    meet again in one graph, as those of ``fork``.

    State: the items in the buffer and the input's state, once; that of ``classifier_fn`` if it has any.

    Raises: ValueError for a ``num_instances`` below 1 and a ``buffer_size`` below -1, TypeError if ``classifier_fn`` is
    no function; while iterating, ValueError for a number without a branch, BufferError before the buffer would
    overflow.
    """

    def __new__(  # type: ignore[misc]
        cls,
        datapipe: IterDataPipe[T],
        num_instances: int,
        classifier_fn: Callable[[T], int | None],
        drop_none: bool = False,
        buffer_size: int = 1000,
    ) -> list[IterDataPipe[T]]:
        check_input("demux", datapipe)
        check_columns("classifier_fn", classifier_fn, None)
        return _Demultiplexer(datapipe, num_instances, classifier_fn, drop_none, buffer_size).branches()


class _Demultiplexer(Container):
    form = "demux"
    in_step = False

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        num_instances: int,
        classifier_fn: Callable[[Any], int | None],
        drop_none: bool,
        buffer_size: int,
    ) -> None:
        super().__init__(datapipe, num_instances, buffer_size)
        self.classifier_fn = classifier_fn
        self.drop_none = drop_none

    def length_of(self, branch: int) -> int:
        raise TypeError("how many items demux() deals to each branch is not known")

    def function(self) -> Any:
        return self.classifier_fn

    def deal(self, item: Any, number: int, fn: Any, branches: Collection[int]) -> Iterable[tuple[int, Any]]:
        answer = plain(fn(item))
        if answer is None and self.drop_none:
            close_streams(item)
            return ()
        try:
            branch = operator.index(answer)
        except TypeError:
            branch = -1
        if not 0 <= branch < self.num_instances:
            hint = ": pass drop_none=True to leave these items out" if answer is None else ""
            raise ValueError(
                f"{callable_name(self.classifier_fn)} must return a number between 0 and {self.num_instances - 1}, "
                f"{answer!r} is returned for item {number}{hint}"
            )
        return ((branch, item),)
