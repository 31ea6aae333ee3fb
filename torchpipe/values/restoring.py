"""The values in a state, read and put back into the present objects.

Runs in every process. Lists, dicts, sets, arrays of the same shape, generators and objects with attributes are changed
in place, so that their holders go on sharing them; others are made anew, once, and set wherever they
are wanted.
"""

from __future__ import annotations

import array
import enum
import math
import types
from typing import Any

import numpy as np
import torch

from torchpipe.errors import StateError
from torchpipe.randomness.generators import MADE, generator_kind, put_generator
from torchpipe.state import decode
from torchpipe.state.flat import damaged
from torchpipe.state.tensors import span_of
from torchpipe.values import old_states
from torchpipe.values.large_data import sample_of
from torchpipe.values.object_contents import (
    ATTRIBUTES,
    Contents,
    Memories,
    Memory,
    is_constant,
    is_same,
    name_of,
)
from torchpipe.values.object_tracker import Link, Node, ObjectTracker, Saved, without
from torchpipe.values.state_table import Row, read

__all__ = ["check", "put"]


def check(tracker: ObjectTracker, saved: Saved) -> None:
    """Raises: StateError for what is damaged, StateMismatchError for what other owners have kept."""
    if old_states.is_older(saved):
        old_states.check(tracker.owners, saved)
    else:
        read(tracker, saved)


def put(tracker: ObjectTracker, saved: Saved, *, compares: bool = True) -> None:
    """Let the owners be as they were when ``saved`` was taken down; data are left, and compared if this ``compares``.

    Raises: StateError for what cannot be put back, and for other data.
    """
    tracker.closed = tracker.begun = None  # the owners are not what a pass has left
    if old_states.is_older(saved):
        _Putting(tracker, [], compares=compares).run()
        old_states.put(tracker.owners, saved)
    else:
        _Putting(tracker, read(tracker, saved), compares=compares).run()


# -- putting back ---------------------------------------------------------------------------------------------------


class _Putting:
    def __init__(self, tracker: ObjectTracker, rows: list[Row], *, compares: bool) -> None:
        self._tracker, self._rows, self._compares = tracker, rows, compares
        self._changed = {id(row.node.value): row.contents for row in rows if row.node is not None and row.contents}
        self._finals: dict[Any, Any] = {}
        self._making: set[int] = set()
        self._used: dict[int, Any] = {}
        self._bare: set[int] = set()  # made, and not filled: they may not be able to say what they are
        self._waiting: list[tuple[Any, Contents, Node | None]] = []
        self._memories = Memories(tracker.memories)
        self._owners = {id(owner): number for number, owner in enumerate(tracker.owners)}

    def run(self) -> None:
        late: list[tuple[Any, Contents, Node | None]] = []
        for owner in self._tracker.owners:
            self._final(owner)
        while self._waiting or late:
            value, wanted, node = self._waiting.pop() if self._waiting else late.pop()
            try:
                if self._waiting and _asks_what_is_within(wanted):
                    late.append((value, wanted, node))
                    self._note_parts(value, wanted)
                    continue
                self._fill(value, wanted, node)
            except StateError:
                raise
            except Exception as error:
                raise self._cannot(value, node, error) from error

    def _note_parts(self, value: Any, wanted: Contents) -> None:
        self._use(_BARE if id(value) in self._bare else self._present(value), wanted)
        for part in wanted.parts:
            self._final(part)

    def _cannot(self, value: Any, node: Node | None, error: Exception) -> StateError:
        return StateError(
            f"{type(value).__name__ if node is None else node.path()} cannot be put back to what it was "
            f"({type(error).__name__}: {error!s:.200}): give the object state_dict() and load_state_dict()"
        )

    def _final(self, part: Any) -> Any:
        """The object that stands there when all is put back."""
        if type(part) is Link:
            row = self._rows[part.number]
            if row.node is None:
                return self._new(part.number, row)
            part = row.node.value
        elif is_constant(part):
            return part
        key = id(part)
        if key not in self._finals:
            node = self._tracker.made[key]
            wanted = self._changed.get(key) or node.contents
            self._finals[key] = part
            try:
                if not self._stays(part, wanted):
                    if key in self._owners:
                        raise TypeError("it cannot be changed in place")
                    self._finals[key] = self._made(wanted)
            except StateError:
                raise
            except Exception as error:
                raise self._cannot(part, node, error) from error
            self._waiting.append((self._finals[key], wanted, node))
        return self._finals[key]

    def _new(self, number: int, row: Row, present: Any = None) -> Any:
        """``present``: what stands in its place now. A pass that goes on may hold it, so it is used where it can be."""
        key = ("row", number)
        if key not in self._finals:
            assert row.contents is not None
            if number in self._making:
                raise damaged("an object of it is made from itself")
            self._making.add(number)
            try:
                here = self._here(row, present)
                self._finals[key] = self._made(row.contents) if here is None else here
            except StateError:
                raise
            except Exception as error:
                raise StateError(f"a {row.kind} of the state cannot be made: {error!r:.200}") from error
            self._waiting.append((self._finals[key], row.contents, None))
        return self._finals[key]

    def _here(self, row: Row, present: Any) -> Any:
        assert row.contents is not None
        other = present is None or id(present) in self._tracker.made or id(present) in self._used
        if other or name_of(type(present)) != row.kind or not self._stays(present, row.contents):
            return None
        self._used[id(present)] = present
        return present

    def _present(self, value: Any) -> Contents:
        contents = self._tracker.contents_of(value, self._memories)
        number = self._owners.get(id(value))
        names = None if number is None else self._tracker.names.get(number)
        return without(contents, names) if names else contents

    def _stays(self, value: Any, wanted: Contents) -> bool:
        """True if the object is, or can be changed into, what is wanted."""
        match wanted.kind:
            case "list" | "dict" | "held" | "opaque" | "code" | "buffer" | "data":
                return True
            case "generator":
                return bool(generator_kind(value) == wanted.fixed[0])
            case "memory":
                view, data = value.view, wanted.fixed[1]
                return view.size == data.size and (view.flags.writeable or np.array_equal(view, data))
            case "encoded" | "objects":
                return bool(self._present(value).fixed[:3] == wanted.fixed[:3])
            case "set" if not wanted.fixed:
                return True
        present = self._present(value)
        if present.kind != wanted.kind:
            return False
        if wanted.kind != "object":
            return is_same(present, self._with_finals(wanted))
        head = 1 + wanted.fixed[1]
        theirs = [self._final(part) for part in wanted.parts[:head]]
        return present.fixed[:2] == wanted.fixed[:2] and is_same(
            Contents("", None, present.parts[:head], False), Contents("", None, theirs, False)
        )

    def _compare(self, value: Any, sample: Any, node: Node | None, name: str = "") -> None:
        """Refuse other data than there were. That none are there yet is no error."""
        if self._compares and self._tracker.is_data(value) and sample_of(value) != sample:
            raise StateError(
                f"{'' if node is None else node.path()}{name} has other data than when the state was saved. What is "
                "larger than 1,000 kB is in no state: leave it as it is (shuffle a list of indices, in the place of "
                "the data), or give the object state_dict() and load_state_dict()"
            )

    def _with_data_there(self, present: Contents, wanted: Contents, node: Node | None) -> Contents:
        """``wanted``, with the present data in attributes: their owner reads them itself."""
        here = dict(zip(present.labels(), present.parts))
        gone = []
        parts = list(wanted.parts)
        for number, part in enumerate(parts):
            if type(part) is Link and (row := self._rows[part.number]).is_data and row.node is None:
                label = wanted.labels()[number]
                if label not in here:
                    gone.append(label[1:])
                    continue
                assert row.contents is not None
                self._compare(here[label], row.contents.fixed, node, label)
                parts[number] = self._finals[id(here[label])] = here[label]
        return without(Contents("object", wanted.fixed, parts, False), gone)

    def _use(self, present: Contents, wanted: Contents) -> None:
        """Objects that are to be made may stand there already."""
        links = [number for number, part in enumerate(wanted.parts) if type(part) is Link]
        if links:
            labels, here = wanted.labels(), dict(zip(present.labels(), present.parts))
            for number in links:
                link = wanted.parts[number]
                row = self._rows[link.number]
                if row.node is None and not is_constant(part := here.get(labels[number])):
                    self._new(link.number, row, part)

    def _with_finals(self, wanted: Contents) -> Contents:
        if wanted.constant:
            return wanted
        return Contents(wanted.kind, wanted.fixed, list(map(self._final, wanted.parts)), False)

    # -- one that is made anew --------------------------------------------------------------------------------------

    def _made(self, wanted: Contents) -> Any:
        made = self._make(wanted)
        self._used[id(made)] = made
        if wanted.kind == "object":
            self._bare.add(id(made))
        return made

    def _make(self, wanted: Contents) -> Any:
        """An object whose lists, dicts, sets and attributes are filled later."""
        fixed = wanted.fixed
        match wanted.kind:
            case "list":
                return []
            case "dict":
                return {}
            case "set":
                return frozenset(map(self._final, wanted.parts)) if fixed else set()
            case "tuple":
                return tuple(map(self._final, wanted.parts))
            case "code":
                return self._tracker.code_named(fixed)
            case "generator":
                made = MADE[fixed[0]](decode(fixed[1]))
                put_generator(made, decode(fixed[1]))
                return made
            case "memory":
                size = fixed[1].size
                owner = torch.empty(size, dtype=torch.uint8) if fixed[0] == "tensor" else np.empty(size, np.uint8)
                return Memory(owner, owner.numpy() if isinstance(owner, torch.Tensor) else owner)
            case "objects":
                return np.empty(fixed, dtype=object)
            case "encoded":
                return decode(fixed[3])
            case "buffer":
                return array.array(fixed[0]) if fixed[0] else bytearray()
            case "enum":
                cls = self._final(wanted.parts[0])
                if not isinstance(cls, enum.EnumMeta):
                    raise TypeError(f"{cls!r:.80} is no enum")
                return cls[fixed[1]] if fixed[0] else cls(fixed[1])
        parts = list(map(self._final, wanted.parts if wanted.kind != "object" else wanted.parts[: 1 + fixed[1]]))
        if wanted.kind == "array":
            described, shape, strides, offset, writeable = fixed
            dtype = np.lib.format.descr_to_dtype(described)
            made = np.ndarray(tuple(shape), dtype, parts[0].view, offset, tuple(strides))
            made.flags.writeable = writeable
            return made
        if wanted.kind == "tensor":
            dtype, shape, strides, offset, requires_grad = fixed
            size = span_of(shape, strides) if math.prod(shape) else 0
            if min((*shape, *strides, offset), default=0) < 0 or (offset + size) * dtype.itemsize > parts[0].view.size:
                raise ValueError(f"a tensor of {shape} in {parts[0].view.size} bytes")
            owner = parts[0].owner
            storage = (owner if isinstance(owner, torch.Tensor) else torch.from_numpy(owner)).untyped_storage()
            return torch.empty(0, dtype=dtype).set_(storage, offset, shape, strides).requires_grad_(requires_grad)
        function, *args = parts
        if fixed[0] != "new":
            return function(*args)
        kind = name_of(function)
        if (kind, "new", kind) not in self._tracker.makers and issubclass(function, tuple):
            return tuple.__new__(function, args)  # nothing of a class that the owners do not hold is run
        return function.__new__(function, *args)

    # -- in place ---------------------------------------------------------------------------------------------------

    def _fill(self, value: Any, wanted: Contents, node: Node | None) -> None:
        kind, fixed = wanted.kind, wanted.fixed
        if kind in ("held", "opaque", "code", "enum"):
            return
        if kind == "data":
            return self._compare(value, fixed, node)
        if kind == "memory":
            if not np.array_equal(value.view, fixed[1]):
                value.view[...] = fixed[1]
            return
        present = _BARE if id(value) in self._bare else self._present(value)
        if kind == "object":
            wanted = self._with_data_there(present, wanted, node)
        self._use(present, wanted)
        wanted = self._with_finals(wanted)
        parts = wanted.parts
        if is_same(present, wanted):
            return
        match kind:
            case "list":
                value[:] = parts
            case "dict":
                value.clear()
                value.update(zip(parts[: len(parts) // 2], parts[len(parts) // 2 :]))
            case "set":
                if not fixed:
                    value.clear(), value.update(parts)
            case "generator":
                put_generator(value, decode(fixed[1]))
            case "buffer":
                value[:] = array.array(fixed[0], fixed[1]) if fixed[0] else fixed[1]
            case "objects":
                for number, part in enumerate(parts):
                    value[np.unravel_index(number, value.shape)] = part
            case "encoded":
                with torch.no_grad():
                    value.copy_(decode(fixed[3])) if isinstance(value, torch.Tensor) else np.copyto(
                        value, decode(fixed[3])
                    )
            case "object":
                _fill_object(value, present, wanted)


def _asks_what_is_within(wanted: Contents) -> bool:
    """True for what is filled when all that it holds has been: hashes ask keys, iterators how long a list is."""
    if wanted.kind == "object":
        return wanted.fixed[2] not in (ATTRIBUTES, "none")
    return wanted.kind in ("set", "dict") and not wanted.constant


_BARE = Contents("object", ["", 0, "none", [], 0, 0], [None])


def _fill_object(value: Any, present: Contents, wanted: Contents) -> None:
    _, args, form, names, items, pairs = wanted.fixed
    first = 1 + args
    kept = wanted.parts[first : first + len(names)]
    rest = wanted.parts[first + len(names) :]
    listed, keys, values = rest[:items], rest[items : items + pairs], rest[items + pairs :]
    if items or present.fixed[4]:
        _refill(value, listed)
    if pairs or present.fixed[5]:
        _refill_pairs(value, list(zip(keys, values)))
    first = 1 + present.fixed[1]
    before = present.parts[first : first + len(present.fixed[3])]
    if form == present.fixed[2] and is_same(
        Contents("", present.fixed[3], before, False), Contents("", names, kept, False)
    ):
        return
    if form == ATTRIBUTES:
        _set_attributes(value, dict(zip(present.fixed[3], before)), dict(zip(names, kept)))
    elif form == "named state":
        value.__setstate__(dict(zip(names, kept)))
    elif form == "state of parts":
        value.__setstate__(tuple(kept))
    elif form == "state":
        value.__setstate__(kept[0])


def _refill(value: Any, items: list[Any]) -> None:
    if isinstance(value, list):
        list.clear(value), list.extend(value, items)
    elif isinstance(value, set):
        set.clear(value), set.update(value, items)
    else:
        value.clear(), value.extend(items)


def _refill_pairs(value: Any, pairs: list[tuple[Any, Any]]) -> None:
    base: Any = next((cls for cls in type(value).__mro__ if cls.__module__ in ("builtins", "collections")), type(value))
    base.clear(value)
    for key, item in pairs:
        base.__setitem__(value, key, item)


def _set_attributes(value: Any, before: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Past ``__setattr__``: frozen dataclasses, say."""
    for name in [*(before.keys() - wanted.keys()), *wanted]:
        if name in wanted and name in before and wanted[name] is before[name]:
            continue
        member = getattr(type(value), name, None)
        if isinstance(member, types.MemberDescriptorType):
            member.__set__(value, wanted[name]) if name in wanted else member.__delete__(value)
        elif name in wanted:
            vars(value)[name] = wanted[name]
        else:
            vars(value).pop(name, None)
