"""Many items made of one by a function.

- ``flatmap``: a function makes many items of one.
- ``interleave``: several files, or other makers of items, open at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, TypeVar, overload

from torchpipe.errors import StateError
from torchpipe.iter._shared.bases import OneInput, unchanged, with_columns
from torchpipe.iter._shared.expanding import ExpandingIterator
from torchpipe.iter._shared.several_open import END, Opened, SeveralOpenIterator, check_called_again, positioned
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator, stored_count, stored_items
from torchpipe.node.traits import is_node
from torchpipe.node.validate import check_columns, check_count

__all__ = ["FlatMapper", "Interleaver"]

T = TypeVar("T")
R = TypeVar("R")


class _FlatMapIterator(ExpandingIterator[R]):
    users_parts = True

    def __init__(self, node: FlatMapper[R], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.fn = self.with_retries(unchanged if node.fn is None else node.fn)
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
        check_columns("fn", unchanged if fn is None else fn, input_col)
        self.fn = fn
        self.input_col = input_col


def _itself(item: Any) -> Any:
    return item


class _InterleaveIterator(SeveralOpenIterator[R]):
    node: Interleaver[R]

    def __init__(self, node: Interleaver[R], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, node.source, "interleave", node.fn)
        self.slots: list[Opened | None] = [None] * node.cycle_length
        self.turn = 0
        self.in_block = 0

    def those_open(self) -> Iterable[Opened]:
        return (item for item in self.slots if item is not None)

    def get_state(self) -> dict[str, Any]:
        return {
            "open": [None if item is None else item.state(self.kept_items) for item in self.slots],
            "turn": self.turn,
            "in_block": self.in_block,
            "opened": self.opened,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        node = self.node
        self.turn = stored_count(state, "turn", at_most=node.cycle_length - 1)
        self.in_block = stored_count(state, "in_block", at_most=node.block_length - 1)
        self.opened = stored_count(state, "opened")
        slots = stored_items(state, "open", at_most=node.cycle_length)
        if len(slots) != node.cycle_length:
            raise StateError(
                f"the state is of an interleave with cycle_length={len(slots)}, and this one has "
                f"cycle_length={node.cycle_length}: make it with as many"
            )
        self.slots = [None if saved is None else Opened.stored(saved) for saved in slots]

    def run(self) -> Iterator[R]:
        source = self.source.items()
        idle = 0  # slots in a row in which there was nothing
        while idle < len(self.slots):
            slot = self.slots[self.turn]
            if slot is None:
                item = next(source, END)
                if item is END:
                    idle += 1
                    self._advance()
                    continue
                slot = self.slots[self.turn] = Opened(item, self.opened)
                self.opened += 1
            part = self.next_of(slot)
            if part is END:
                self.end_pass(slot.parts)
                self.slots[self.turn] = None
                self._advance()
                continue
            idle = 0
            self.in_block += 1
            if self.in_block == self.node.block_length:
                self._advance()
            yield part

    def _advance(self) -> None:
        self.turn, self.in_block = (self.turn + 1) % len(self.slots), 0

    def current(self) -> object:
        return self.slots[self.turn]

    def leave_out(self) -> bool:
        slot = self.slots[self.turn]
        if slot is None:
            return False
        self.end_pass(slot.parts)
        self.slots[self.turn] = None
        self._advance()
        return True

    def close(self) -> None:
        super().close()
        self.slots = [None] * self.node.cycle_length


@functional_datapipe("interleave")
class Interleaver(OneInput[R]):
    """Opens ``cycle_length`` items of its input at once with ``fn``, and takes ``block_length`` items of each in turn.

    As tf.data's node of this name: where one ends, the next of the input takes its place in the turn. ``fn`` makes
    something iterable of an item (a path, say): a node, which has random streams of its own, a container, an open file,
    an iterator. Without it the items themselves are iterated. The order is a function of the input alone.

    State: the items that are open (so give paths, not open files), and where each stands, as with ``flatmap``: the
    state of a node, of an iterator that has one, a position in a sequence or file that can seek; of a generator, the
    number of results, which are made again, as a :class:`~torchpipe.errors.ReplayWarning` announces. It has no length.

    Raises: ValueError for counts below 1; TypeError if ``fn`` is no function, has a state, or, while iterating, returns
    nothing iterable; GraphError, while iterating, if what it opens draws from the global random states meanwhile:
    with several open, what each draws could not be told apart after a resume.
    """

    iterator = _InterleaveIterator

    @overload
    def __init__(
        self: Interleaver[Any], datapipe: IterDataPipe[Any], *, cycle_length: int = ..., block_length: int = ...
    ) -> None: ...
    @overload
    def __init__(
        self,
        datapipe: IterDataPipe[T],
        fn: Callable[[T], Iterable[R]],
        cycle_length: int = ...,
        block_length: int = ...,
    ) -> None: ...
    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        fn: Callable[..., Iterable[Any]] = _itself,
        cycle_length: int = 4,
        block_length: int = 1,
    ) -> None:
        super().__init__(datapipe)
        check_columns("fn", fn, None)
        check_called_again("interleave", fn)
        self.fn = fn
        self.cycle_length = check_count("cycle_length", cycle_length, at_least=1, at_most=1 << 16)
        self.block_length = check_count("block_length", block_length, at_least=1)
