"""``batch``: gather items into lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from torchpipe.iter._shared.bases import ItemIterator, OneInput
from torchpipe.node.context import Context
from torchpipe.node.datapipe import DataChunk, IterDataPipe, functional_datapipe
from torchpipe.node.tolerance import skip, tried
from torchpipe.node.validate import check_choice, check_count, check_function
from torchpipe.state.copying import copy_item

__all__ = ["Batcher"]

T = TypeVar("T")

Last: TypeAlias = Literal["keep", "drop", "repeat", "raise"]


class _BatchIterator(ItemIterator[list[T]]):
    node: Batcher[T]
    keeps_items = True  # while it gathers them

    def __init__(self, node: Batcher[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.wrap = self.with_retries(node.wrapper_class)

        self.gathered = 0  # in the batch that was gathered last

    def lost(self, of_input: bool) -> int | None:
        if of_input:  # the rest of the batch goes with it
            size = self.node.batch_size
            skip(self.source.items(), -tried(self.source) % size)
            self.gathered = (tried(self.source) - 1) % size + 1
        return 1

    def items_in_hand(self, of_input: bool) -> int:
        return self.gathered

    def run(self) -> Iterator[list[T]]:
        size, wrap = self.node.batch_size, self.wrap
        stream = self.source.items()
        least = size if self.node.drop_last else 1
        while len(batch := list(islice(stream, size))) >= least:
            self.gathered = len(batch)
            if len(batch) < size:
                self._fill(batch)
            full = wrap(batch)
            del batch  # let go of it before it is handed out
            yield full
            del full

    def _fill(self, batch: list[T]) -> None:
        """Fill a batch that is not full, or raise, as ``last`` says."""
        last, size = self.node.last, self.node.batch_size
        if last == "raise":
            raise ValueError(f"the last batch has {len(batch)} items instead of {size}, and last='raise'")
        if last == "repeat":
            batch.extend(map(copy_item, islice(cycle(list(batch)), size - len(batch))))


@functional_datapipe("batch")
class Batcher(OneInput[list[T]]):
    """Gathers ``batch_size`` consecutive items into a list; a shorter last one is left out with ``drop_last``.

    ``last`` says more of a shorter last one: ``"keep"``, ``"drop"``, ``"repeat"``, which fills it with copies of its
    own items, from its first on, so that all batches have one size, or ``"raise"``. ``wrapper_class`` is called with
    each list and makes the batch of it. Behind a sharding point, each shard makes batches of its own items, and has a
    last one of its own: with 8 shards, ``drop_last`` leaves out up to 8 batches. Where that is too much, take fewer
    shards, or ``last="repeat"``.

    State: none of its own, since between two batches it holds no item.

    Raises: ValueError if ``batch_size`` is below 1, for another ``last``, or one beside ``drop_last``; TypeError if
    ``wrapper_class`` cannot be called. With ``last="raise"``: ValueError, while iterating, in the last batch's place.
    """

    iterator = _BatchIterator

    def __init__(
        self,
        datapipe: IterDataPipe[T],
        batch_size: int,
        drop_last: bool = False,
        wrapper_class: Callable[[list[Any]], Any] = DataChunk,
        *,
        last: Last | None = None,
    ) -> None:
        super().__init__(datapipe)
        check_function("wrapper_class", wrapper_class)
        self.batch_size = check_count("batch_size", batch_size, at_least=1)
        if last is not None:
            check_choice("last", last, get_args(Last))
            if drop_last:
                raise ValueError(f"drop_last=True and last={last!r} both say what becomes of the last batch: give one")
        self.drop_last = drop_last or last == "drop"
        self.last = "drop" if drop_last else last or "keep"
        self.wrapper_class = wrapper_class

    def __len__(self) -> int:
        full, rest = divmod(len(self.source), self.batch_size)
        return full if self.drop_last or not rest else full + 1
