"""The pass over a map-style node by a list of keys: ``to_iter_datapipe`` and the map-style ``shuffle``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torchpipe.indexed.by_index import ByIndex
from torchpipe.node.generator_seeding import SeededGenerators
from torchpipe.node.validate import check_map_input

if TYPE_CHECKING:
    from torchpipe.node.context import Context
    from torchpipe.node.traits import DataPipe

__all__ = ["KeysIterator", "check_keys"]

T = TypeVar("T")


def check_keys(name: str, datapipe: object, indices: object) -> None:
    """Raises: TypeError unless ``datapipe`` is map-style, and ``indices``, if not None, can be indexed."""
    check_map_input(name, datapipe)
    if indices is not None and not (hasattr(indices, "__len__") and hasattr(indices, "__getitem__")):
        raise TypeError(f"indices must be a list of keys, got {indices!r} of type {type(indices).__name__}")


class _Keys:
    """At each key, the key."""

    def __getitem__(self, key: Any) -> Any:
        return key


class KeysIterator(ByIndex[T]):
    """Reads ``data`` at ``keys``, which are called for once, when the pass begins. State: one integer."""

    def __init__(
        self, node: DataPipe, context: Context, data: Any, length: int, keys: Callable[[], Sequence[Any]]
    ) -> None:
        super().__init__(node, context, length, SeededGenerators(data, warn=context.warn_once))
        self._data = data
        self._keys = keys
        self._held: Sequence[Any] | None = None  # the keys; an order of many costs more than an item

    def give_keys(self) -> None:
        self._data = _Keys()

    def read_at(self) -> Callable[[int], Any]:
        if self._held is None:
            self._held = self._keys()
        data, keys = self._data, self._held
        return lambda index: data[keys[index]]

    def run(self) -> Iterator[T]:
        read: Callable[[int], Any] = int if self._yields_positions else self.reader()
        for index in range(self.first_from(self._passed), self._length, self._parts):
            self._passed = index + 1
            yield read(index)
