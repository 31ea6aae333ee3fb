"""``drop``, ``slice`` and ``flatten``: parts of tuples, lists and dicts."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torchpipe.iter._shared.bases import Itemwise
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.plain import plain, plain_key
from torchpipe.node.validate import check_count

__all__ = ["Dropper", "Flattener", "Slicer"]


def _several(value: Any) -> tuple[Hashable, ...]:
    return tuple(dict.fromkeys(map(plain_key, value if isinstance(value, list) else [value])))


def _like(item: Any, parts: list[Any]) -> Any:
    return tuple(parts) if isinstance(item, tuple) else parts


def _check_parts(form: str, item: Any, parts: tuple[Hashable, ...]) -> None:
    """Raises: TypeError unless ``item`` is a tuple, list or dict; KeyError or IndexError for a part that it lacks."""
    if not isinstance(item, tuple | list | dict):
        raise TypeError(f"{form} needs tuples, lists or dicts, got {item!r:.200} of type {type(item).__name__}")
    for part in parts:
        if isinstance(item, dict):
            if part not in item:
                raise KeyError(f"{form} found no {part!r} in {item!r:.200}")
        elif not isinstance(part, int) or not 0 <= part < len(item):
            raise IndexError(f"{form} found no index {part!r} in {item!r:.200}, which has {len(item)}")


@functional_datapipe("drop")
class Dropper(Itemwise[Any]):
    """Leaves out the parts ``indices`` of each item: indices of tuples and lists, keys of dicts; one or several.

    State: none of its own. Raises: while iterating, IndexError or KeyError if an item lacks a part that is named,
    TypeError if it has no parts.
    """

    def __init__(self, datapipe: IterDataPipe[Any], indices: Hashable | list[Hashable]) -> None:
        super().__init__(datapipe)
        self.indices = _several(indices)

    def change(self, item: Any) -> Any:
        _check_parts("drop", item, self.indices)
        if isinstance(item, dict):
            return {key: value for key, value in item.items() if key not in self.indices}
        return _like(item, [value for index, value in enumerate(item) if index not in self.indices])


@functional_datapipe("slice")
class Slicer(Itemwise[Any]):
    """Keeps parts of each item: of tuples and lists ``item[index:stop:step]``, or the indices in a list ``index``, in
    their own order; of dicts the key ``index``, or the keys in a list of them.

    State: none of its own. Raises: ValueError for ``stop`` or ``step`` beside a list; while iterating, IndexError or
    KeyError if an item lacks a part that is named, TypeError if it has no parts.
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        index: Hashable | list[Hashable],
        stop: int | None = None,
        step: int | None = None,
    ) -> None:
        super().__init__(datapipe)
        self.named = isinstance(index, list)
        if self.named and (stop is not None or step is not None):
            raise ValueError(f"index={index!r} is a list of indices: leave out stop={stop!r} and step={step!r}")
        step = None if step is None else check_count("step", step, at_least=1)
        self.index = _several(index) if self.named else plain_key(index)
        self.stop = plain(stop)
        self.step = step

    def change(self, item: Any) -> Any:
        parts: Any = self.index if self.named else (self.index,) if isinstance(item, dict) else ()
        _check_parts("slice", item, parts)
        if isinstance(item, dict):
            return {key: value for key, value in item.items() if key in parts}
        if self.named:
            return _like(item, [value for index, value in enumerate(item) if index in parts])
        return item[self.index : self.stop : self.step]


@functional_datapipe("flatten")
class Flattener(Itemwise[Any]):
    """Puts what stands in the parts ``indices`` of each item in their place: lists and tuples into lists and tuples,
    dicts into dicts. Without ``indices``, in all parts; with an empty list, in none. One level of them.

    State: none of its own. Raises: while iterating, IndexError or KeyError if an item lacks a part that is named,
    TypeError if it has no parts, ValueError if a key would stand twice in a dict.
    """

    def __init__(self, datapipe: IterDataPipe[Any], indices: Hashable | list[Hashable] | None = None) -> None:
        super().__init__(datapipe)
        self.indices = None if indices is None else _several(indices)

    def change(self, item: Any) -> Any:
        _check_parts("flatten", item, self.indices or ())
        if isinstance(item, dict):
            pairs: list[Any] = []
            for key, value in item.items():
                pairs.extend(value.items() if self._flattens(key) and isinstance(value, dict) else [(key, value)])
            flat = dict(pairs)
            if len(flat) < len(pairs):
                raise ValueError(f"flatten would put a key twice into {item!r:.200}: say which parts, by indices=")
            return flat
        parts: list[Any] = []
        for index, value in enumerate(item):
            parts.extend(value if self._flattens(index) and isinstance(value, list | tuple) else [value])
        return _like(item, parts)

    def _flattens(self, part: Hashable) -> bool:
        return self.indices is None or part in self.indices
