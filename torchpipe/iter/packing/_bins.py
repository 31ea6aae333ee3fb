"""Bins of a fixed length, and the samples that go into them: what ``pack`` is made of.

A *budget* is a length that bins have: one for all fields, which are then of one length in each sample, or one for each
field. Arrays are numpy's inside; a tensor's memory is read in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from torchpipe.errors import StateError
from torchpipe.iter._shared.arrays import FIELD, KINDS, as_array, field_name
from torchpipe.node.iterator import stored_count
from torchpipe.state.copying import copy_item

__all__ = ["Bin", "Layout", "Segment", "filled", "state_of", "stored_bin", "stored_segment", "stored_segments"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A sample, or a part of one: an array for each field, its size in each budget, and what is kept of it."""

    parts: tuple[np.ndarray[Any, Any], ...]
    sizes: tuple[int, ...]
    kept: tuple[Any, ...]

    def head(self, size: int) -> Segment:
        """The first ``size`` entries in each budget."""
        return Segment(tuple(part[:size] for part in self.parts), tuple(min(size, n) for n in self.sizes), self.kept)

    def rest(self, size: int) -> Segment:
        """The entries behind those of :meth:`head`. For one budget alone."""
        return Segment(tuple(part[size:] for part in self.parts), (self.sizes[0] - size,), copy_item(self.kept))


@dataclass(frozen=True)
class Layout:
    """The layout of samples, as the first one had it: ``rows`` has an empty array for each field, for its dtype."""

    fields: tuple[str, ...]
    rows: tuple[np.ndarray[Any, Any], ...]
    tensors: tuple[bool, ...]  # True for fields that are handed out as tensors
    kept: tuple[str, ...]
    lengths: tuple[int, ...]  # of the budgets
    budget: tuple[int, ...]  # the budget of each field
    names: tuple[str, ...]  # what stands before "segment_ids" and "positions" of each budget

    @classmethod
    def of(
        cls, item: Any, lengths: int | Mapping[str, int], kept: Sequence[str], state: dict[str, Any] | None = None
    ) -> Layout:
        """The layout of ``item``, a sample; or that of ``state``. Raises: TypeError, ValueError."""
        if state is not None:
            fields, rows, tensors = (tuple(state[name]) for name in ("fields", "rows", "tensors"))
            if not 0 < len(fields) == len(rows) == len(tensors) or not all(type(row) is np.ndarray for row in rows):
                raise TypeError("its fields are not as many as their arrays")
            if not all(type(name) is str for name in fields) or any(row.dtype.kind not in KINDS for row in rows):
                raise TypeError("its fields have no names, or hold no numbers")
            rows = tuple(row[:0] for row in rows)
        else:
            names = [name for name in _fields_of(item) if name not in kept] if isinstance(lengths, int) else lengths
            arrays = [as_array("pack()", name, _field(item, name)) for name in names]
            fields, rows = tuple(names), tuple(found[:0] for found, _ in arrays)
            tensors = tuple(tensor for _, tensor in arrays)
        if isinstance(lengths, int):
            return cls(fields, rows, tensors, tuple(kept), (lengths,), (0,) * len(fields), ("",))
        if fields != tuple(lengths):
            raise ValueError(f"its fields {fields!r:.60} are not those that have lengths")
        numbers = tuple(range(len(fields)))
        return cls(fields, rows, tensors, tuple(kept), tuple(lengths.values()), numbers, tuple(f"{n}_" for n in fields))

    def state(self) -> dict[str, Any]:
        return {"fields": list(self.fields), "rows": list(self.rows), "tensors": list(self.tensors)}

    def read(self, item: Any) -> Segment:
        """The sample as arrays. Raises: TypeError, ValueError, KeyError if it is none, or not like those before."""
        if self.names == ("",) and isinstance(item, Mapping) and len(item) > len(self.fields) + len(self.kept):
            other = [name for name in item if name not in self.fields and name not in self.kept]
            raise ValueError(f"an item has fields {other!r:.80}, which those before had not: give all the same fields")
        parts = []
        for name, row, tensor in zip(self.fields, self.rows, self.tensors):
            found, is_tensor = as_array("pack()", name, _field(item, name))
            fits = found.dtype is row.dtype or found.dtype == row.dtype
            if not fits or found.shape[1:] != row.shape[1:] or is_tensor != tensor:
                if len(found):
                    raise TypeError(
                        f"{field_name(name)} has entries {_entries(found, is_tensor)}, those before had "
                        f"{_entries(row, tensor)}: give all samples the same dtype and shape behind the first dimension"
                    )
                found = row
            parts.append(found)
        sizes = [0] * len(self.lengths)
        for name, budget, part in zip(self.fields, self.budget, parts):
            if part is not parts[0] and budget == 0 and len(self.lengths) == 1 and len(part) != sizes[0]:
                raise ValueError(
                    f"field {self.fields[0]!r} has {sizes[0]} entries and {name!r} has {len(part)}: with one length, "
                    "all fields of a sample go together. Give pack() a length for each field, in a dict, if they do "
                    "not, or name those that are no sequences in keep"
                )
            sizes[budget] = len(part)
        return Segment(tuple(parts), tuple(sizes), tuple([_field(item, name) for name in self.kept]))


def _fields_of(item: Any) -> Sequence[str]:
    if not isinstance(item, Mapping):
        return (FIELD,)
    taken = [name for name in item if name in ("segment_ids", "positions") or type(name) is not str]
    if taken or not item:
        raise ValueError(
            f"pack() adds fields segment_ids and positions to those of an item, whose names are texts, and it has "
            f"{list(item)!r:.80}: rename or remove {', '.join(map(repr, taken)) or 'none, it is empty'}"
        )
    return tuple(item)


def _field(item: Any, name: str) -> Any:
    if isinstance(item, Mapping):
        if name not in item:
            raise KeyError(f"an item has no field {name!r}, only {', '.join(map(repr, item))}: is it misspelt?")
        return item[name]
    if name != FIELD:
        raise TypeError(f"an item is to be a dict with a field {name!r}, got {type(item).__name__}")
    return item


def _entries(found: np.ndarray[Any, Any], tensor: bool) -> str:
    shape = f" of shape {found.shape[1:]}" if found.ndim > 1 else ""
    return f"{found.dtype}{shape} ({'tensor' if tensor else 'array'})"


@lru_cache(maxsize=64)
def _counted(length: int) -> np.ndarray[Any, Any]:
    return np.arange(length, dtype=np.int32)


class Bin:
    """One pack in the making."""

    __slots__ = ("data", "ids", "kept", "layout", "positions", "room", "sizes", "used")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.data = [
            np.empty((layout.lengths[budget], *row.shape[1:]), row.dtype)
            for row, budget in zip(layout.rows, layout.budget)
        ]
        self.ids = [np.empty(length, np.int32) for length in layout.lengths]
        self.positions = [np.empty(length, np.int32) for length in layout.lengths]
        self.used = [0] * len(layout.lengths)
        self.room = list(layout.lengths)
        self.sizes: list[tuple[int, ...]] = []
        self.kept: list[tuple[Any, ...]] = []

    def takes(self, segment: Segment) -> bool:
        room, sizes = self.room, segment.sizes
        return room[0] >= sizes[0] and (len(room) == 1 or all(map(int.__ge__, room, sizes)))

    def add(self, segment: Segment) -> None:
        used, sizes = self.used, segment.sizes
        for target, budget, part in zip(self.data, self.layout.budget, segment.parts):
            target[used[budget] : used[budget] + len(part)] = part
        self.sizes.append(sizes)
        self.kept.append(segment.kept)
        number = len(self.sizes)
        for budget, size in enumerate(sizes):
            begin = used[budget]
            end = used[budget] = begin + size
            self.ids[budget][begin:end] = number
            self.positions[budget][begin:end] = _counted(self.layout.lengths[budget])[:size]
            self.room[budget] -= size

    def finished(self, pads: Sequence[Any]) -> dict[str, Any]:
        """The pack, padded; the bin is of no use after that."""
        layout = self.layout
        made: dict[str, Any] = {}
        for name, budget, data, tensor, pad in zip(layout.fields, layout.budget, self.data, layout.tensors, pads):
            data[self.used[budget] :] = pad
            made[name] = torch.from_numpy(data) if tensor else data
        for budget, name in enumerate(layout.names):
            tensor = layout.tensors[layout.budget.index(budget)]
            for what, values in (("segment_ids", self.ids[budget]), ("positions", self.positions[budget])):
                values[self.used[budget] :] = 0
                made[name + what] = torch.from_numpy(values) if tensor else values
        for index, name in enumerate(layout.kept):
            made[name] = [kept[index] for kept in self.kept]
        return made

    def state(self, copied: Callable[[Iterable[Any]], list[Any]]) -> dict[str, Any]:
        used = [self.used[budget] for budget in self.layout.budget]
        return {
            "sizes": [list(sizes) for sizes in self.sizes],
            "data": [data[:length].copy() for data, length in zip(self.data, used)],
            "kept": [copied(kept) for kept in self.kept],
        }


def _parts(state: dict[str, Any], layout: Layout) -> list[np.ndarray[Any, Any]]:
    parts = state["data"]
    if type(parts) is not list or len(parts) != len(layout.rows):
        raise StateError(f"a bin has {len(layout.rows)} fields, the state says otherwise")
    for part, row in zip(parts, layout.rows):
        if type(part) is not np.ndarray or part.dtype != row.dtype or part.shape[1:] != row.shape[1:] or not part.ndim:
            raise StateError(f"a bin holds arrays of {row.dtype}, the state has others")
    return parts


def _kept(values: Any, layout: Layout) -> tuple[Any, ...]:
    if type(values) is not list or len(values) != len(layout.kept):
        raise StateError(f"a segment keeps {len(layout.kept)} values, the state says otherwise")
    return tuple(values)


def state_of(segments: Sequence[Segment], copied: Callable[[Iterable[Any]], list[Any]]) -> dict[str, Any]:
    """The segments one after the other, as :meth:`Bin.state` describes those of a bin."""
    return {
        "sizes": [list(segment.sizes) for segment in segments],
        "data": [np.concatenate(parts) for parts in zip(*(segment.parts for segment in segments))],
        "kept": [copied(segment.kept) for segment in segments],
    }


def stored_segments(state: dict[str, Any], layout: Layout) -> Iterator[Segment]:
    """The segments that a state describes. Raises: StateError and the like for what does not fit ``layout``."""
    parts, at = _parts(state, layout), [0] * len(layout.lengths)
    for sizes, kept in zip(state["sizes"], state["kept"], strict=True):
        sizes = tuple(stored_count({"size": size}, "size") for size in sizes)
        if len(sizes) != len(at) or not any(sizes):
            raise StateError(f"a segment has {len(at)} sizes, the state says {sizes!r:.40}")
        cut = [part[at[b] : at[b] + sizes[b]] for part, b in zip(parts, layout.budget)]
        if any(len(part) != sizes[b] for part, b in zip(cut, layout.budget)):
            raise StateError(f"a bin in the state has segments of {sizes!r:.40} that are not there")
        yield Segment(tuple(cut), sizes, _kept(kept, layout))
        at = [one + other for one, other in zip(at, sizes)]
    if any(len(part) != at[budget] for part, budget in zip(parts, layout.budget)):
        raise StateError("a bin in the state holds more than its segments")


def stored_bin(state: dict[str, Any], layout: Layout) -> Bin:
    """The bin that :meth:`Bin.state` described. Raises: as :func:`stored_segments`."""
    return filled(layout, stored_segments(state, layout))


def filled(layout: Layout, segments: Iterable[Segment]) -> Bin:
    """A bin of these. Raises: StateError if there is no room for them."""
    made = Bin(layout)
    for segment in segments:
        if not made.takes(segment):
            raise StateError(f"a bin in the state has segments of {segment.sizes!r:.40} that do not fit")
        made.add(segment)
    return made


def stored_segment(state: dict[str, Any], layout: Layout) -> Segment:
    """The one segment of a state as :meth:`Bin.state` makes it, however long. Raises: as :func:`stored_bin`."""
    parts = _parts(state, layout)
    if len(layout.lengths) != 1 or not len(parts[0]) or any(len(part) != len(parts[0]) for part in parts):
        raise StateError("the rest of a sample in the state has fields of several lengths, or none")
    (kept,) = state["kept"]
    return Segment(tuple(parts), (len(parts[0]),), _kept(kept, layout))
