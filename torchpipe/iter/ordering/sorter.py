"""``sort`` and ``window_shuffle``: another order within windows of the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

from torchpipe.errors import StateError
from torchpipe.indexed.selecting import SelectingIterator
from torchpipe.iter._shared.bases import ItemIterator, OnePerItem
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import stored_count, stored_items
from torchpipe.node.plain import plain_key
from torchpipe.node.traits import callable_name
from torchpipe.node.validate import check_columns, check_count
from torchpipe.randomness.seeds import permutation, stored_key

__all__ = ["Sorter", "WindowShuffler"]

T = TypeVar("T")


def _itself(item: Any) -> Any:
    return item


class _SortIterator(ItemIterator[T]):
    node: Sorter[T]
    keeps_items = True

    def __init__(self, node: Sorter[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.key_fn = self.with_retries(node.key_fn)
        self.left: list[T] = []  # the next one last
        self.window: list[tuple[Any, T]] = []  # that is being gathered, with keys
        self.sorted = 1  # items that are compared with each other

    def get_state(self) -> dict[str, Any]:
        return {"left": self.kept_items(self.left)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.left = stored_items(state, "left", at_most=self.node.window)

    def run(self) -> Iterator[T]:
        node, source = self.node, self.source.items()
        while True:
            while self.left:
                yield self.left.pop()
            for item in islice(source, node.window - len(self.window)):
                self.window.append((self._key(item), item))
            window, self.window = self.window, []
            self.sorted = len(window)
            window.sort(key=lambda entry: entry[0], reverse=node.reverse)
            self.sorted = 1
            self.left = [item for _, item in reversed(window)]
            if not self.left:
                return

    def _key(self, item: T) -> Any:
        key = plain_key(self.key_fn(item))
        if isinstance(key, float) and key != key:
            raise ValueError(
                f"{callable_name(self.node.key_fn)} gives NaN for {item!r:.200}, which stands nowhere in an order: "
                "filter such items out, or give them a number"
            )
        return key

    def items_in_hand(self, of_input: bool) -> int:
        return self.sorted

    def leave_out(self) -> bool:
        self.sorted = 1
        return True

    def close(self) -> None:
        super().close()
        self.left, self.window = [], []


@functional_datapipe("sort")
class Sorter(OnePerItem[T]):
    """Takes ``window`` items at a time and hands them out in the order of ``key_fn``; equal ones stay in order.

    Without ``key_fn`` the items themselves are compared. ``reverse`` is as in :func:`sorted`.

    State: what is left of the window.

    Raises: ValueError if ``window`` is below 1; TypeError if ``key_fn`` is no function; while iterating, ValueError for
    a key that is NaN.
    """

    iterator = _SortIterator

    def __init__(
        self, datapipe: IterDataPipe[T], window: int, key_fn: Callable[[T], Any] = _itself, *, reverse: bool = False
    ) -> None:
        super().__init__(datapipe)
        check_columns("key_fn", key_fn, None)
        self.window = check_count("window", window, at_least=1)
        self.key_fn: Callable[[Any], Any] = key_fn
        self.reverse = reverse


class _WindowIterator(SelectingIterator[T]):
    node: WindowShuffler[T]

    def __init__(self, node: WindowShuffler[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.key = context.stream_key(node)
        self.windows = 0
        self.left: list[Any] = []  # of items, or of positions; the next one last
        self._kept = "left" if self.positions is None else "places"

    def get_state(self) -> dict[str, Any]:
        return {"key": list(self.key), "windows": self.windows, self._kept: self.kept_items(self.left)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.key, self.windows = stored_key(state["key"]), stored_count(state, "windows")
        self.left = stored_items(state, self._kept, at_most=self.node.window)
        if self.positions is not None and not all(map(self.positions.holds, self.left)):
            raise StateError("the window in the state holds positions that are not in the data: is it the same?")

    def choose(self) -> Iterator[Any]:
        source = self.source.items()
        while True:
            while self.left:
                yield self.left.pop()
            window = list(islice(source, self.node.window))
            if not window:
                return
            order = permutation((*self.key, self.windows), len(window))
            self.windows += 1
            self.left = [window[index] for index in order]

    def close(self) -> None:
        super().close()
        self.left = []


@functional_datapipe("window_shuffle")
class WindowShuffler(OnePerItem[T]):
    """Takes ``window`` items at a time and hands them out in random order, every order having the same chance.

    An item stays within its window, so that batches of as many items hold what they would without it; ``shuffle`` mixes
    further. Of a source that is read by position the window holds positions, as with ``shuffle``.

    State: what is left of the window, a key and the number of the window.

    Raises: ValueError if ``window`` is below 1.
    """

    iterator = _WindowIterator
    seeded = True
    selects = True

    def __init__(self, datapipe: IterDataPipe[T], window: int) -> None:
        super().__init__(datapipe)
        self.window = check_count("window", window, at_least=1)
