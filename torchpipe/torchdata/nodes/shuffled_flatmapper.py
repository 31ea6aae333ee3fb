"""``shuffled_flatmap``: the results of a function for several items, mixed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, overload

from torchpipe.iter._shared.bases import Switchable, unchanged, with_columns
from torchpipe.iter._shared.several_open import END, Opened, SeveralOpenIterator, check_called_again
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import stored_count, stored_items
from torchpipe.node.validate import check_columns, check_count
from torchpipe.randomness.seeds import IndexStream

__all__ = ["ShuffledFlatMapper"]

T = TypeVar("T")
R = TypeVar("R")


class _ShuffledIterator(SeveralOpenIterator[R]):
    node: ShuffledFlatMapper[R]

    def __init__(self, node: ShuffledFlatMapper[R], context: Context, source: IterDataPipe[Any]) -> None:
        call = with_columns(unchanged if node.fn is None else node.fn, node.input_col)
        super().__init__(node, context, source, "shuffled_flatmap", call)
        self.random = IndexStream(node.random_key(context))
        self.open: list[Opened] = []
        self.drawn: int | None = None  # the position that is being read

    def those_open(self) -> Iterable[Opened]:
        return self.open

    def get_state(self) -> dict[str, Any]:
        random = {"random": self.random.state_dict()} if self.node.enabled else {}
        return {"open": [item.state(self.kept_items) for item in self.open], "opened": self.opened, **random}

    def set_state(self, state: dict[str, Any]) -> None:
        self.node.check_switched(state)
        if self.node.enabled:
            self.random.load_state_dict(state["random"])
        self.opened = stored_count(state, "opened")
        self.open = [Opened.stored(saved) for saved in stored_items(state, "open", at_most=self.node.buffer_size)]

    def run(self) -> Iterator[R]:
        source, ended = self.source.items(), False
        size = self.node.buffer_size if self.node.enabled else 1
        while True:
            while len(self.open) < size and not ended:
                item = next(source, END)
                if item is END:
                    ended = True
                else:
                    self.open.append(Opened(item, self.opened))
                    self.opened += 1
            if not self.open:
                return
            self.drawn = self.random.index(len(self.open)) if self.node.enabled else 0
            held = [self.next_of(self.open[self.drawn])]
            if held[0] is END:
                self._let_go(self.drawn)
            else:
                yield held.pop()

    def _let_go(self, index: int) -> None:
        self.end_pass(self.open[index].parts)
        self.open[index] = self.open[-1]  # the last one fills the gap
        self.open.pop()

    def current(self) -> object:
        return None if self.drawn is None or self.drawn >= len(self.open) else self.open[self.drawn]

    def leave_out(self) -> bool:
        if self.drawn is None or self.drawn >= len(self.open):
            return False
        self._let_go(self.drawn)
        self.drawn = None
        return True

    def close(self) -> None:
        super().close()
        self.open = []


@functional_datapipe("shuffled_flatmap")
class ShuffledFlatMapper(Switchable[R]):
    """Opens ``buffer_size`` items of its input at once with ``fn``, and takes each item from one of them, drawn evenly.

    ``fn`` makes something iterable of an item, as with ``flatmap``; without it the items themselves are iterated. With
    ``input_col`` it is called with those parts of the item. Where one ends, the next of the input is opened. The draws
    are a function of seed, epoch and position in the graph.

    State: the items that are open (so give paths, not open files), and where each stands, as with ``interleave``; a key
    and the number of draws. It has no length.

    Raises: ValueError if ``buffer_size`` is below 1; TypeError if ``fn`` is no function, has a state, or, while
    iterating, returns nothing iterable; GraphError, while iterating, if what it opens draws from the global random
    states meanwhile.
    """

    iterator = _ShuffledIterator

    @overload
    def __init__(
        self: ShuffledFlatMapper[Any], datapipe: IterDataPipe[Any], *, input_col: Any = ..., buffer_size: int = ...
    ) -> None: ...
    @overload
    def __init__(
        self, datapipe: IterDataPipe[Any], fn: Callable[..., Iterable[R]], input_col: Any = ..., buffer_size: int = ...
    ) -> None: ...
    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        fn: Callable[..., Iterable[Any]] | None = None,
        input_col: Any = None,
        buffer_size: int = 100,
    ) -> None:
        super().__init__(datapipe)
        check_columns("fn", unchanged if fn is None else fn, input_col)
        check_called_again("shuffled_flatmap", fn)
        self.fn = fn
        self.input_col = input_col
        self.buffer_size = check_count("buffer_size", buffer_size, at_least=1)
