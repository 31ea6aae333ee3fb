"""``round_robin_demux``: items for several branches in turn."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, TypeVar

from torchpipe.iter._shared.shared_pass import Container
from torchpipe.node.announce import warn_user
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count, check_input

__all__ = ["RoundRobinDemultiplexer"]

T = TypeVar("T")


@functional_datapipe("round_robin_demux")
class RoundRobinDemultiplexer(IterDataPipe[T]):
    """``num_instances`` branches that get the items of the input in turn.

    The input is read once for all branches; items that come before their branch asks for them wait in a buffer of
    ``buffer_size`` items for all branches together (-1: any number, with a warning). The branches meet again in one
    graph, as those of ``fork``.

    State: the items in the buffer and the input's state, once.

    Raises: ValueError for a ``num_instances`` below 1 and a ``buffer_size`` below -1; while iterating, BufferError
    before the buffer would overflow.
    """

    def __new__(  # type: ignore[misc]
        cls, datapipe: IterDataPipe[T], num_instances: int, buffer_size: int = 1000
    ) -> list[IterDataPipe[T]]:
        check_input("round_robin_demux", datapipe)
        if check_count("num_instances", num_instances, at_least=1) == 1:
            warn_user("round_robin_demux(1) is the datapipe itself, in a list: is that meant?", UserWarning)
            return [datapipe]
        return _RoundRobin(datapipe, num_instances, buffer_size).branches()


class _RoundRobin(Container):
    form = "round_robin_demux"
    in_step = False

    def length_of(self, branch: int) -> int:
        full, rest = divmod(len(self.source), self.num_instances)
        return full + (branch < rest)

    def deal(self, item: Any, number: int, fn: Any, branches: Collection[int]) -> Iterable[tuple[int, Any]]:
        return ((number % self.num_instances, item),)
