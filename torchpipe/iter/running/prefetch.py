"""``prefetch``: a thread runs ahead of the consumer."""

from __future__ import annotations

from typing import TypeVar

from torchpipe.ahead.iterators import RunAheadIterator
from torchpipe.ahead.stage import Stage
from torchpipe.iter._shared.bases import OnePerItem
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_count

__all__ = ["Prefetcher"]

T_co = TypeVar("T_co", covariant=True)


@functional_datapipe("prefetch")
class Prefetcher(OnePerItem[T_co]):
    """Pulls up to ``buffer_size`` items of ``source_datapipe`` ahead in one thread, and hands them on in order.

    Helps where the input waits for files or the network, or computes without holding Python's interpreter lock. The
    items and their order stay as they are. The thread starts with the first item and ends with the pass: at
    ``close()``, or when the iterator is dropped. An exception of the input is raised at its place in the stream.

    State: describes the items handed out; those in the buffer are pulled again after a restore. A state saved with
    this node loads into the same graph without it, and the other way round.

    Raises: TypeError or ValueError if ``buffer_size`` is no integer of at least 1.
    """

    alters_stream = False
    one_to_one = True
    selects = True

    def __init__(self, source_datapipe: IterDataPipe[T_co], buffer_size: int = 10) -> None:
        super().__init__(source_datapipe)
        self.buffer_size = check_count("buffer_size", buffer_size, at_least=1)

    def iterate(self, context: Context) -> NodeIterator[T_co]:
        travels = context.failures is not None and context.failures.travels
        # Branches of one pass are read in one thread; a thread that has met an exception does not go on behind it
        if not context.host.threads or travels or context.graph.reads_separately(self):
            return context.iterate(self.source)
        return RunAheadIterator(self, context, self.source, Stage(depth=self.buffer_size))
