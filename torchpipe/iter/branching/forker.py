"""``fork``: the same items for several branches, of one pass."""

from __future__ import annotations

import copy as copying
from collections.abc import Collection, Iterable
from typing import Any, Literal, TypeVar

from torchpipe.iter._shared.shared_pass import Container
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count, check_input
from torchpipe.state.copying import copy_item

__all__ = ["Forker"]

T = TypeVar("T")


@functional_datapipe("fork")
class Forker(IterDataPipe[T]):
    """``num_instances`` branches that all yield the items of the input, which is read once for all of them.

    What one branch has read and another has not waits in a buffer of ``buffer_size`` items (-1: any number, with a
    warning). Branches that nothing in the graph reads do not count. One branch is the input itself.

    Each branch gets items of its own, so that none sees what another changes in place: the last one to read an item
    gets it itself, the others copies, of what can be changed. ``copy="deep"`` makes copies by ``copy.deepcopy`` for
    all; ``"shallow"`` copies containers, not what is in them; ``"same"`` hands out the same object to all, for large
    items that nobody changes.

    The branches meet again in one graph (``zip``, ``mux``): ``iter()`` of each alone is a pass of its own. They have to
    meet before what is dispatched, or runs in the main process.

    State: the items in the buffer and the input's state, once.

    Raises: ValueError for a ``num_instances`` below 1, a ``buffer_size`` below -1 and another ``copy``; while
    iterating, BufferError before the buffer would overflow.
    """

    def __new__(  # type: ignore[misc]
        cls,
        datapipe: IterDataPipe[T],
        num_instances: int,
        buffer_size: int = 1000,
        copy: Literal["shallow", "deep", "same"] | None = None,
    ) -> list[IterDataPipe[T]]:
        check_input("fork", datapipe)
        if copy not in (None, "shallow", "deep", "same"):
            raise ValueError(f"copy must be None, 'shallow', 'deep' or 'same', got {copy!r}")
        if check_count("num_instances", num_instances, at_least=1) == 1:
            return datapipe  # type: ignore[return-value]  # as torch has it
        return _Forker(datapipe, num_instances, buffer_size, copy).branches()


class _Forker(Container):
    form = "fork"
    alike = True

    def __init__(self, datapipe: IterDataPipe[Any], num_instances: int, buffer_size: int, copy: str | None) -> None:
        super().__init__(datapipe, num_instances, buffer_size)
        self.copy = copy

    def deal(self, item: Any, number: int, fn: Any, branches: Collection[int]) -> Iterable[tuple[int, Any]]:
        return [(branch, item) for branch in branches]

    def hand_out(self, value: Any, waits: bool) -> Any:
        if self.copy is None:
            return copy_item(value) if waits else value
        if self.copy == "same":
            return value
        return copying.deepcopy(value) if self.copy == "deep" else copying.copy(value)
