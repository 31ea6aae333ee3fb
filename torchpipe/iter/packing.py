"""``pack``: samples of any length into sequences of one length.

Bins of a fixed length, and the samples that go into them: what ``pack`` is made of.

A *budget* is a length that bins have: one for all fields, which are then of one length in each sample, or one for each
field. Arrays are numpy's inside; a tensor's memory is read in place.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch

from torchpipe.errors import StateError, add_note
from torchpipe.iter._shared.arrays import FIELD, KINDS, as_array, field_name, given_pads, pads_of
from torchpipe.iter._shared.bases import ItemIterator, OneInput
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import stored_count, stored_items
from torchpipe.node.validate import check_choice, check_count
from torchpipe.state.copying import copy_item

__all__ = ["Overflow", "Packer", "Strategy"]


@dataclass(frozen=True, slots=True)
class _Segment:
    """A sample, or a part of one: an array for each field, its size in each budget, and what is kept of it."""

    parts: tuple[np.ndarray[Any, Any], ...]
    sizes: tuple[int, ...]
    kept: tuple[Any, ...]

    def head(self, size: int) -> _Segment:
        """The first ``size`` entries in each budget."""
        return _Segment(tuple(part[:size] for part in self.parts), tuple(min(size, n) for n in self.sizes), self.kept)

    def rest(self, size: int) -> _Segment:
        """The entries behind those of :meth:`head`. For one budget alone."""
        return _Segment(tuple(part[size:] for part in self.parts), (self.sizes[0] - size,), copy_item(self.kept))


@dataclass(frozen=True)
class _Layout:
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
    ) -> _Layout:
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

    def read(self, item: Any) -> _Segment:
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
        return _Segment(tuple(parts), tuple(sizes), tuple([_field(item, name) for name in self.kept]))


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


class _Bin:
    """One pack in the making."""

    __slots__ = ("data", "ids", "kept", "layout", "positions", "room", "sizes", "used")

    def __init__(self, layout: _Layout) -> None:
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

    def takes(self, segment: _Segment) -> bool:
        room, sizes = self.room, segment.sizes
        return room[0] >= sizes[0] and (len(room) == 1 or all(map(int.__ge__, room, sizes)))

    def add(self, segment: _Segment) -> None:
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


def _parts(state: dict[str, Any], layout: _Layout) -> list[np.ndarray[Any, Any]]:
    parts = state["data"]
    if type(parts) is not list or len(parts) != len(layout.rows):
        raise StateError(f"a bin has {len(layout.rows)} fields, the state says otherwise")
    for part, row in zip(parts, layout.rows):
        if type(part) is not np.ndarray or part.dtype != row.dtype or part.shape[1:] != row.shape[1:] or not part.ndim:
            raise StateError(f"a bin holds arrays of {row.dtype}, the state has others")
    return parts


def _kept(values: Any, layout: _Layout) -> tuple[Any, ...]:
    if type(values) is not list or len(values) != len(layout.kept):
        raise StateError(f"a segment keeps {len(layout.kept)} values, the state says otherwise")
    return tuple(values)


def _state_of(segments: Sequence[_Segment], copied: Callable[[Iterable[Any]], list[Any]]) -> dict[str, Any]:
    """The segments one after the other, as :meth:`Bin.state` describes those of a bin."""
    return {
        "sizes": [list(segment.sizes) for segment in segments],
        "data": [np.concatenate(parts) for parts in zip(*(segment.parts for segment in segments))],
        "kept": [copied(segment.kept) for segment in segments],
    }


def _stored_segments(state: dict[str, Any], layout: _Layout) -> Iterator[_Segment]:
    """The segments that a state describes. Raises: StateError and the like for what does not fit ``layout``."""
    parts, at = _parts(state, layout), [0] * len(layout.lengths)
    for sizes, kept in zip(state["sizes"], state["kept"], strict=True):
        sizes = tuple(stored_count({"size": size}, "size") for size in sizes)
        if len(sizes) != len(at) or not any(sizes):
            raise StateError(f"a segment has {len(at)} sizes, the state says {sizes!r:.40}")
        cut = [part[at[b] : at[b] + sizes[b]] for part, b in zip(parts, layout.budget)]
        if any(len(part) != sizes[b] for part, b in zip(cut, layout.budget)):
            raise StateError(f"a bin in the state has segments of {sizes!r:.40} that are not there")
        yield _Segment(tuple(cut), sizes, _kept(kept, layout))
        at = [one + other for one, other in zip(at, sizes)]
    if any(len(part) != at[budget] for part, budget in zip(parts, layout.budget)):
        raise StateError("a bin in the state holds more than its segments")


def _stored_bin(state: dict[str, Any], layout: _Layout) -> _Bin:
    """The bin that :meth:`Bin.state` described. Raises: as :func:`stored_segments`."""
    return _filled(layout, _stored_segments(state, layout))


def _filled(layout: _Layout, segments: Iterable[_Segment]) -> _Bin:
    """A bin of these. Raises: StateError if there is no room for them."""
    made = _Bin(layout)
    for segment in segments:
        if not made.takes(segment):
            raise StateError(f"a bin in the state has segments of {segment.sizes!r:.40} that do not fit")
        made.add(segment)
    return made


def _stored_segment(state: dict[str, Any], layout: _Layout) -> _Segment:
    """The one segment of a state as :meth:`Bin.state` makes it, however long. Raises: as :func:`stored_bin`."""
    parts = _parts(state, layout)
    if len(layout.lengths) != 1 or not len(parts[0]) or any(len(part) != len(parts[0]) for part in parts):
        raise StateError("the rest of a sample in the state has fields of several lengths, or none")
    (kept,) = state["kept"]
    return _Segment(tuple(parts), (len(parts[0]),), _kept(kept, layout))


Strategy: TypeAlias = Literal["concat", "first_fit", "best_fit"]
Overflow: TypeAlias = Literal["split", "truncate", "drop", "raise"]

_log = logging.getLogger("torchpipe")
_END: Any = object()
_BINS = 8


class _PackIterator(ItemIterator[dict[str, Any]]):
    node: Packer
    keeps_items = True

    def __init__(self, node: Packer, context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.layout: _Layout | None = None  # known from the first sample on
        self.rest: _Segment | None = None  # what is left of a sample that is being cut
        self.open: list[_Bin] = []
        self.ready: deque[_Bin] = deque()  # packs to be handed out
        self.window: list[_Segment] = []  # that is being gathered
        self.planned: deque[list[_Segment]] = deque()  # the packs of a window, to be made and handed out
        self.counts = {"samples": 0, "truncated": 0, "dropped": 0}
        self.loaded = False  # True while ``layout`` is a state's, and no sample has been compared with it
        self.put_in = (
            self._concatenate if node.strategy == "concat" else self._fit if node.window is None else self._gather
        )

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(self.counts)
        if self.layout is not None:
            state |= {"layout": self.layout.state(), "open": [item.state(self.kept_items) for item in self.open]}
            state["ready"] = [item.state(self.kept_items) for item in self.ready]
        if self.planned:
            together = _state_of([segment for pack in self.planned for segment in pack], self.kept_items)
            state["planned"] = {**together, "packs": [len(pack) for pack in self.planned]}
        if self.rest is not None:
            parts = [part.copy() for part in self.rest.parts]
            state["rest"] = {"data": parts, "kept": [self.kept_items(self.rest.kept)]}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        node = self.node
        self.counts = {name: stored_count(state, name) for name in self.counts}
        if "layout" in state:
            self.layout, self.loaded = _Layout.of(None, node.length, node.keep, state["layout"]), True
            most = node.bins if node.strategy != "concat" else 1
            self.open = [_stored_bin(item, self.layout) for item in stored_items(state, "open", at_most=most)]
            self.ready.extend(_stored_bin(item, self.layout) for item in stored_items(state, "ready", at_most=most + 1))
            if "planned" in state:
                self.planned = self._stored_plan(state["planned"], self.layout)
            if "rest" in state:
                self.rest = _stored_segment(state["rest"], self.layout)

    def run(self) -> Iterator[dict[str, Any]]:
        source, ready, put_in = self.source.items(), self.ready, self.put_in
        while True:
            while ready or self.planned:
                done = ready.popleft() if ready else _filled(self._layout_so_far(), self.planned.popleft())
                yield self._finished(done)
                del done
            if self.rest is not None:
                segment, self.rest = self.rest, None
                put_in(segment)
                continue
            item = next(source, _END)
            if item is _END:
                if self.window:
                    self._plan()
                    continue
                if not self.open:
                    return
                ready.extend(() if self.node.drop_last else self.open)
                self.open = []
                continue
            whole = self._read(item)
            if whole is not None:
                put_in(whole)

    def _stored_plan(self, state: dict[str, Any], layout: _Layout) -> deque[list[_Segment]]:
        most = self.node.window or 0
        counts = [stored_count({"segments": count}, "segments") for count in stored_items(state, "packs", at_most=most)]
        segments = _stored_segments({**state, "data": [part.copy() for part in state["data"]]}, layout)
        plan = deque(list(islice(segments, count)) for count in counts)
        fits = [sum(segment.sizes[0] for segment in pack) <= layout.lengths[0] for pack in plan]
        if [*map(len, plan)] != counts or not all(counts) or not all(fits) or sum(counts) > most or [*segments]:
            raise StateError("the packs of a window in the state are not those of its samples, or do not fit")
        return plan

    def _finished(self, done: _Bin) -> dict[str, Any]:
        return done.finished(self._pads(done.layout))

    def _pads(self, layout: _Layout) -> list[Any]:
        dtypes = {name: row.dtype for name, row in zip(layout.fields, layout.rows)}
        return pads_of("pack()", self.node.pad_value, dtypes)

    def _read(self, item: Any) -> _Segment | None:
        """The sample as a segment, or as what its overflow leaves of it. None: nothing."""
        node, number = self.node, self.counts["samples"]
        self.counts["samples"] = number + 1
        try:
            layout = self.layout or _Layout.of(item, node.length, node.keep)
            segment = layout.read(item)
            if self.layout is None and any(segment.sizes):  # an empty list says nothing of dtypes
                self._begin(layout)
        except (KeyError, TypeError, ValueError) as error:
            add_note(error, f"pack: at sample {number} of this pass")
            if self.loaded:
                add_note(
                    error, "pack: the samples before are those that the loaded state tells of: is it the same data?"
                )
            raise
        self.loaded = False
        if not any(segment.sizes):
            return None
        if node.overflow != "split" and any(size > room for size, room in zip(segment.sizes, layout.lengths)):
            return self._cut(segment, layout)
        return segment

    def _begin(self, layout: _Layout) -> None:
        self._pads(layout)  # wrong ones are an error at the first sample
        self.layout = layout

    def _cut(self, segment: _Segment, layout: _Layout) -> _Segment | None:
        overflow, sizes = self.node.overflow, segment.sizes
        what = f"{sizes[0] if len(sizes) == 1 else sizes} entries, more than length={self.node.length}"
        if overflow == "raise":
            raise ValueError(f"sample {self.counts['samples'] - 1} of pack() has {what}: choose another overflow")
        counted = "truncated" if overflow == "truncate" else "dropped"
        if not self.counts[counted]:
            number = self.counts["samples"] - 1
            _log.warning("pack: sample %d has %s, and was %s; the state counts further ones", number, what, counted)
        self.counts[counted] += 1
        if overflow == "drop":
            return None
        parts = tuple(part[: layout.lengths[budget]] for part, budget in zip(segment.parts, layout.budget))
        return _Segment(parts, tuple(map(min, sizes, layout.lengths)), segment.kept)

    def _concatenate(self, segment: _Segment) -> None:
        """Into the one open bin, as much as there is room for."""
        if not self.open:
            self.open.append(self._new_bin())
        room = self.open[0].room[0]
        if segment.sizes[0] > room:
            self.rest, segment = segment.rest(room), segment.head(room)
        self.open[0].add(segment)
        if not self.open[0].room[0]:
            self.ready.append(self.open.pop())

    def _fit(self, segment: _Segment) -> None:
        """Whole into one bin; of one that has to be split, the first part."""
        length = self.node.length
        if isinstance(length, int) and segment.sizes[0] > length:
            self.rest, segment = segment.rest(length), segment.head(length)
        fitting = (item for item in self.open if item.takes(segment))
        chosen = next(fitting, None) if self.node.strategy == "first_fit" else min(fitting, key=_room, default=None)
        new = chosen is None
        chosen = chosen or self._new_bin()
        chosen.add(segment)
        if not any(chosen.room) or len(chosen.sizes) == self.node.max_sequences_per_bin:
            self.ready.append(chosen)
            if not new:
                self.open.remove(chosen)
        elif new:
            if len(self.open) == self.node.bins:
                self.ready.append(min(self.open, key=_room))
                self.open.remove(self.ready[-1])
            self.open.append(chosen)

    def _gather(self, segment: _Segment) -> None:
        """Into the window, at whose end packs are planned. A copy: the user may use the memory of a sample again."""
        length = self._layout_so_far().lengths[0]
        if segment.sizes[0] > length:
            self.rest, segment = segment.rest(length), segment.head(length)
        self.window.append(_Segment(tuple(part.copy() for part in segment.parts), segment.sizes, segment.kept))
        if len(self.window) == self.node.window:
            self._plan()

    def _plan(self) -> None:
        """Divide the window among packs, the longest first, each into the one that it fills best. In a pack samples
        stand in their order, and packs in that of their first samples: short ones are not all at the end.
        """
        window, self.window = self.window, []
        packs: list[list[int]] = []
        rooms: list[tuple[int, int]] = []  # (room, number) of the packs that take more, in order
        for index in sorted(range(len(window)), key=lambda index: -window[index].sizes[0]):
            size = window[index].sizes[0]
            place = bisect_left(rooms, (size, 0))
            if place < len(rooms):
                room, number = rooms.pop(place)
            else:
                room, number = self._layout_so_far().lengths[0], len(packs)
                packs.append([])
            packs[number].append(index)
            if room > size and len(packs[number]) != self.node.max_sequences_per_bin:
                insort(rooms, (room - size, number))
        self.planned.extend([window[index] for index in pack] for pack in sorted(map(sorted, packs)))

    def _new_bin(self) -> _Bin:
        return _Bin(self._layout_so_far())

    def _layout_so_far(self) -> _Layout:
        assert self.layout is not None
        return self.layout

    def close(self) -> None:
        super().close()
        self.rest, self.open, self.window = None, [], []
        self.ready.clear()
        self.planned.clear()


@functional_datapipe("pack")
class Packer(OneInput[dict[str, Any]]):
    """Packs samples of any length into sequences of ``length`` entries, and says which entry belongs to which sample.

    A sample is a sequence of numbers (list, array, tensor, bytes), or a dict of sequences. With a number as ``length``,
    all fields of a sample go together (tokens, labels, a loss mask). With a dict, each of its fields has a length and
    is filled by itself (inputs and targets); other fields are left out. A pack is a dict of the fields (``"tokens"``
    where samples are bare), of shape (length, ...) and the dtype of the samples, and of ``segment_ids`` and
    ``positions`` (int32; of a dict's fields, ``<field>_segment_ids`` and so on). Segments count from 1 in each pack,
    and positions from 0 in each segment; padding has 0 in both, and ``pad_value`` in the fields: a dict of numbers by
    field (0 where it names none), or a number, which is 0 or for fields of one kind (bool, whole, floating). Fields in
    ``keep`` become lists, with an entry for each segment. Arrays give arrays, all else tensors.

    ``strategy``: ``"concat"`` puts samples one after the other and cuts every ``length`` entries: no padding but at the
    end. ``"first_fit"`` and ``"best_fit"`` keep samples whole. Of at most ``bins`` (8) open packs a sample goes into
    the first one with room for it, or the one that it fills best; if it fits none, the fullest is handed out, as is one
    that is full or has ``max_sequences_per_bin`` samples. (Csirik and Johnson: "Bounded Space On-Line Bin Packing:
    Best Is Better than First", Algorithmica 31, 2001; these are their AFB and ABB.) ``window``, with ``"best_fit"``:
    gather so many samples and divide them among packs, the longest first, with as many open as it takes; the packs come
    in the order of their first samples.

    ``overflow``: what becomes of a sample longer than ``length``. ``"split"`` makes segments of it, each with positions
    from 0 (the default with one length); ``"truncate"`` keeps its beginning; ``"drop"`` leaves it out; ``"raise"`` is
    a ValueError (the default with several lengths). The state counts what was cut and left out, and a warning of the
    logger ``torchpipe`` tells of the first. Samples without any entry make no segment. With ``drop_last``, packs that
    are not full when the input ends are left out.

    State: the open packs, what is left of the window, and the rest of the sample being cut.

    Raises: ValueError for lengths and counts below 1 or options that do not go together. While iterating: TypeError,
    ValueError or KeyError for a sample that is wrong or unlike those before.
    """

    iterator = _PackIterator
    window: int | None = None  # of a node without one it is no part, as of those that older states tell of

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        length: int | Mapping[str, int],
        *,
        strategy: Strategy = "concat",
        bins: int | None = None,
        window: int | None = None,
        max_sequences_per_bin: int | None = None,
        overflow: Overflow | None = None,
        pad_value: Any = 0,
        keep: Sequence[str] = (),
        drop_last: bool = False,
    ) -> None:
        super().__init__(datapipe)
        ragged = isinstance(length, Mapping)
        if ragged and not length:
            raise ValueError("length must name at least one field, got an empty dict")
        self.length = (
            {name: check_count(f"length[{name!r}]", size, at_least=1) for name, size in length.items()}
            if isinstance(length, Mapping)
            else check_count("length", length, at_least=1)
        )
        self.strategy = strategy
        self.overflow = overflow or ("raise" if ragged else "split")
        check_choice("strategy", strategy, get_args(Strategy))
        check_choice("overflow", self.overflow, get_args(Overflow))
        if strategy == "concat" and (bins is not None or max_sequences_per_bin is not None):
            raise ValueError(
                "strategy='concat' has no bins: use 'first_fit' or 'best_fit', or leave bins and "
                "max_sequences_per_bin out"
            )
        if ragged and (strategy == "concat" or overflow == "split"):
            raise ValueError(
                "a sample whose fields have lengths of their own cannot be cut: with a dict as length, use strategy="
                "'first_fit' or 'best_fit', and overflow='truncate', 'drop' or 'raise'"
            )
        if window is not None:
            if strategy != "best_fit" or ragged or bins is not None or drop_last:
                raise ValueError(
                    "window= is for strategy='best_fit' and one length: it opens as many packs as a window fills "
                    "(no bins=), and at the end of the input all of them are handed out (no drop_last=)"
                )
            self.window = check_count("window", window, at_least=1)
        self.bins = check_count("bins", _BINS if bins is None else bins, at_least=1)
        self.max_sequences_per_bin = (
            None
            if max_sequences_per_bin is None
            else check_count("max_sequences_per_bin", max_sequences_per_bin, at_least=1)
        )
        self.pad_value = given_pads(pad_value)
        self.keep = (keep,) if isinstance(keep, str) else tuple(keep)
        if ragged and set(self.keep) & set(length):  # type: ignore[arg-type]
            raise ValueError(f"keep={self.keep!r} has a field that length packs: a field is packed or kept")
        self.drop_last = drop_last


def _room(item: _Bin) -> int:
    return sum(item.room)
