"""Objects as they were when they were first looked at: what differs now, as plain data; and all of it put back.

Runs in every process.

A state holds a table of objects: those that differ, those that have been made since, and the present ones that they
refer to. A present object is named by what leads to it from the owners, a class or function by its name, and is looked
for only among what the owners hold themselves; so that loading a state imports nothing, and runs nothing but what the
classes of the owners' own objects do when they are unpickled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from torchpipe.randomness.generators import GENERATORS
from torchpipe.state.kinds import find_named
from torchpipe.values.large_data import is_larger, sample_of
from torchpipe.values.object_contents import (
    ATTRIBUTES,
    NAMED,
    Contents,
    Memories,
    by_attributes,
    contents_of,
    encoded,
    is_constant,
    is_of_machine,
    is_own,
    is_same,
    name_of,
)
from torchpipe.values.standard_classes import WELL_KNOWN, WELL_KNOWN_MAKERS

__all__ = ["Link", "Node", "ObjectTracker", "Saved", "without"]

_MOST_OBJECTS = 20_000  # where there is a limit to what is taken down: 0.2 s

Saved: TypeAlias = Any
"""Plain data: [] for owners that are as they were, else {"objects": the table}."""


@dataclass(frozen=True, slots=True)
class Link:
    """A part of contents that are read from a state: the object of this number in its table."""

    number: int


@dataclass(slots=True, eq=False)
class Node:
    """An object that was found. ``label`` leads to it from ``parent``."""

    value: Any
    contents: Contents
    parent: Node | None
    label: Any

    def steps(self) -> tuple[Any, ...]:
        labels, node = [self.label], self.parent
        while node is not None:
            labels.append(node.label)
            node = node.parent
        return tuple(reversed(labels))

    def path(self) -> str:
        """For people."""
        node, words = self, ""
        while (holder := node.parent) is not None:
            node, words = holder, _word(node.label, holder) + words
        return f"{type(node.value).__name__}{words:.200}"


def _word(label: Any, holder: Node) -> str:
    if type(label) is not tuple:
        return label if type(label) is str else f"[{label}]"
    what, key = label
    if what == "argument" and holder.contents.fixed[1] and name_of(holder.contents.parts[0]) == "builtins:getattr":
        return ".__self__"
    return f"[{key!r:.40}]" if what in ("key", "of", "value") else f".{what}{key}"


class ObjectTracker:
    """``owners`` as they are when this is made, with all that they refer to.

    ``held``: objects that are somebody else's to keep, and ``held_types``. ``names``: of owners, by their number,
    attributes that are. ``at_most``: what they hold that is larger, in bytes, is data; of objects the nearest are
    followed then.
    """

    def __init__(
        self,
        owners: Collection[Any],
        *,
        held: Collection[Any] = (),
        held_types: tuple[type, ...] = (),
        names: Mapping[int, Collection[str]] | None = None,
        at_most: int | None = None,
    ) -> None:
        self.owners = list(owners)
        self._held, self._held_types, self.names = list(held), held_types, dict(names or {})
        self._at_most = at_most
        self._begin()

    def _begin(self) -> None:
        self.closed: bytes | None = None  # what the pass that used the owners last had left when it was closed
        self.begun: Saved | None = None  # what the pass that uses them now began with
        self.memories = Memories()
        self.told = False  # by who has told what is lost
        self.beyond: Node | None = None  # holds what is too far away to be followed
        self._seen: dict[int, Node] = {}  # large ones that have changed since, as they were last
        self.made: dict[int, Node] = {}
        self.made = self.look()
        self.places = {node.steps(): node for node in self.made.values()}
        self.code: dict[str, Any] = dict(WELL_KNOWN)
        self.makers: set[tuple[str, str, str]] = set(WELL_KNOWN_MAKERS)  # (class, how, by what)
        for node in self.made.values():
            kind, function = name_of(type(node.value)), node.contents.parts[:1]
            if node.contents.kind == "object" and node.contents.fixed[0] != "held":
                self.makers.add((kind, node.contents.fixed[0], name_of(function[0])))
                self._note_code(function[0])
            self._note_code(node.value if node.contents.kind == "code" else type(node.value))

    def _note_code(self, code: Any) -> None:
        name = name_of(code)
        if self.code.setdefault(name, code) is not code:
            self.code[name] = None  # two of one name: none of them

    def code_named(self, name: Any) -> Any:
        """The class or function, among those of the owners; named tuples, dataclasses and enums among all loaded."""
        return (self.code.get(name) or find_named(name)) if type(name) is str else None

    def may_make(self, kind: str, how: str, function: str) -> bool:
        return (kind, how, function) in self.makers or (how == "new" and kind == function and bool(find_named(kind)))

    def __getstate__(self) -> dict[str, Any]:
        """Another process's, or a copy's, is as it is there when it comes into being."""
        return {name: vars(self)[name] for name in ("owners", "_held", "_held_types", "names", "_at_most")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    # -- looking ----------------------------------------------------------------------------------------------------

    def look(self, *, at_large: bool = True) -> dict[int, Node]:
        """The present objects, by id. Not ``at_large``: large lists and arrays are taken to be as they were last."""
        found: dict[int, Node] = {}
        memories = Memories(self.memories) if self.made else self.memories
        waiting: deque[tuple[Any, Node | None, Any]] = deque(
            (owner, None, ("owner", number)) for number, owner in enumerate(self.owners)
        )
        not_mine = set(map(id, self._held))
        while waiting:
            value, parent, label = waiting.popleft()
            if id(value) in found:
                continue
            if id(value) in not_mine or (parent is not None and isinstance(value, self._held_types)):
                contents = Contents("held")
            elif parent is not None and self.is_data(value):
                contents = Contents("data", sample_of(value))
            elif parent is not None and self._at_most is not None and is_own(type(value)):
                contents = Contents("held")
            elif self._at_most is not None and len(found) >= _MOST_OBJECTS:
                contents = Contents("held")
                self.beyond = self.beyond or parent
            else:
                contents = self._contents(value, memories, at_large)
            if parent is None and (names := self.names.get(label[1])):
                contents = without(contents, names)
            node = found[id(value)] = Node(value, contents, parent, label)
            if not contents.constant:
                for part, name in zip(contents.parts, contents.labels(), strict=True):
                    if not is_constant(part) or self.is_data(part):
                        waiting.append((part, node, name))
        return found

    def contents_of(self, value: Any, memories: Memories) -> Contents:
        """The contents of ``value``; if it cannot be asked, of its identity alone. Holders of data that pickle new
        objects each time they are asked (tables, say) are followed by their attributes.
        """
        try:
            contents = contents_of(value, memories)
            if (
                self._at_most is not None
                and contents.kind == "object"
                and not hasattr(type(value), "__next__")
                and not is_same(contents, contents_of(value, memories))
            ):
                contents = by_attributes(value)
        except RecursionError:
            raise
        except Exception:  # objects refuse in many ways
            return Contents("opaque")
        if contents.kind in ("array", "tensor") and self.is_data(contents.parts[0]):
            return encoded(value, str(value.dtype), "")  # a small view of data
        return contents

    def is_data(self, value: Any) -> bool:
        return self._at_most is not None and is_larger(value, self._at_most)

    def _contents(self, value: Any, memories: Memories, at_large: bool) -> Contents:
        before = self.made.get(id(value))
        if before is None or not before.contents.is_large:
            return self.contents_of(value, memories)
        last = self._seen.get(id(value), before).contents
        if (
            not at_large
            and last.constant
            and (last.kind == "memory" or (last.kind == "list" and _as_long(value, last)))
        ):
            return last
        if last.kind == "memory" and np.array_equal(value.view, last.fixed[1]):
            return last
        if last.constant and last.kind == "list" and type(value) is list and value == last.parts:
            return last
        contents = self.contents_of(value, memories)
        self._seen[id(value)] = Node(value, contents, None, None)
        return contents

    def is_unchanged(self, node: Node) -> bool:
        made = self.made.get(id(node.value))
        return made is not None and is_same(node.contents, made.contents)

    # -- taking down ------------------------------------------------------------------------------------------------

    def now(self, *, at_large: bool = True) -> Saved:
        """The changes that make of the owners, as they were first looked at, the present ones."""
        found = self.look(at_large=at_large)
        changed = [node for node in found.values() if not self.is_unchanged(node)]
        return {"objects": _Table(self, found, changed).rows} if changed else []

    def generators(self) -> list[str]:
        """The paths of random generators."""
        return [node.path() for node in self.look().values() if isinstance(node.value, GENERATORS)]

    def changed_in_place(self, *, except_for: Collection[int]) -> list[str]:
        """The paths of objects that were there and are not as they were, but for those with these ids."""
        return [
            (node if node.contents.kind != "memory" or node.parent is None else node.parent).path()
            for node in self.look().values()
            if id(node.value) in self.made and id(node.value) not in except_for and not self.is_unchanged(node)
        ]

    def drawn(self) -> list[str]:
        """The paths of random generators that have been drawn from, and of numbers in attributes that have changed."""
        found = []
        for node in self.look().values():
            before = self.made.get(id(node.value))
            if before is None or self.is_unchanged(node):
                continue
            if isinstance(node.value, GENERATORS):
                found.append(node.path())
            was, now = before.contents.attributes(), node.contents.attributes()
            found += [
                f"{node.path()}.{name}"
                for name, value in now.items()
                if type(value) in (int, float) and name in was and was[name] != value
            ]
        return found

    def lost(self) -> list[tuple[int, str]]:
        """(number of the owner, where it is) of what can be put back by nobody, and is or may be not what it was."""
        found = [
            (node.steps()[0][1], f"{node.path()} ({type(node.value).__name__})")
            for node in self.look(at_large=False).values()
            if node.parent is not None and node.label != "()" and self._is_lost(node, node.parent) and self._tells(node)
        ]
        if (far := self.beyond) is not None:
            text = f"what is further away than the nearest {_MOST_OBJECTS:,} objects, as in {far.path()}"
            found.append((far.steps()[0][1], text))
        return found

    def _tells(self, node: Node) -> bool:
        """False for what belongs to the process (files, locks, connections), which datasets open as they are read."""
        contents, kind = node.contents, type(node.value)
        refused = (
            contents.fixed[0] == "held" if contents.kind == "object" else contents.kind in ("held", "code", "opaque")
        )
        return self._at_most is None or not refused or (hasattr(kind, "__next__") and not is_of_machine(kind))

    def _is_lost(self, node: Node, parent: Node) -> bool:
        if id(node.value) in self.made:
            return node.contents.kind == "opaque"
        if node.contents.kind == "data":  # which its owner reads, where it is an attribute
            return not (self.is_unchanged(parent) or (id(parent.value) in self.made and parent.contents.attributes()))
        return not self._can_be_made(node)

    def _can_be_made(self, node: Node) -> bool:
        """That of what it refers to is another question."""
        contents = node.contents
        match contents.kind:
            case "held" | "opaque" | "data":
                return False
            case "encoded":
                return not contents.fixed[2]  # in this process's memory
            case "code":
                return self.code_named(contents.fixed) is node.value
            case "enum":
                return self.code_named(name_of(type(node.value))) is type(node.value)
            case "object":
                kind, function = type(node.value), contents.parts[0]
                known = self.code_named(name_of(kind)) is kind and self.code_named(name_of(function)) is function
                return known and self.may_make(name_of(kind), contents.fixed[0], name_of(function))
            case _:
                return True


def _as_long(value: Any, contents: Contents) -> bool:
    return type(value) is list and len(value) == len(contents.parts)


def without(contents: Contents, names: Collection[str]) -> Contents:
    """An owner's, but for attributes that are somebody else's."""
    if contents.kind != "object" or contents.fixed[2] not in NAMED:
        return contents
    how, args, form, kept, items, pairs = contents.fixed
    gone = {1 + args + number for number, name in enumerate(kept) if name in names}
    parts = [part for number, part in enumerate(contents.parts) if number not in gone]
    return Contents(
        "object", [how, args, form, [name for name in kept if name not in names], items, pairs], parts, False
    )


class _Table:
    """The rows of a state: [steps or None, type, kind or None, fixed, parts, links]. ``links``: [[part, row], ...].

    A row with steps is a present object; without a kind, as it was. A part that is a link is None.
    """

    def __init__(self, tracker: ObjectTracker, found: dict[int, Node], changed: list[Node]) -> None:
        self.rows: list[list[Any]] = []
        self._tracker, self._found = tracker, found
        self._numbers: dict[int, int] = {}
        self._order: list[Any] = []
        self._changed = {id(node.value) for node in changed}
        self._data = {key for key, node in found.items() if node.contents.kind == "data"}
        self._lost = self._all_lost()
        for node in changed:
            if id(node.value) in tracker.made:
                self._number(node.value)
        for number, value in enumerate(self._order):  # which grows
            self._write(number, value)

    def _all_lost(self) -> set[int]:
        """New objects that nobody can make again, or that hold such."""
        new = {key: node for key, node in self._found.items() if key not in self._tracker.made}
        lost = {key for key, node in new.items() if not self._tracker._can_be_made(node)}
        holders: dict[int, list[int]] = {}
        for key, node in new.items():
            for part in [] if node.contents.constant else node.contents.parts:
                holders.setdefault(id(part), []).append(key)
        waiting = list(lost)
        while waiting:
            for key in holders.get(waiting.pop(), ()):
                if key not in lost:
                    lost.add(key)
                    waiting.append(key)
        return lost

    def _number(self, value: Any) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self.rows)
            made = self._tracker.made.get(id(value))
            steps = None if made is None else list(made.steps())
            self.rows.append([steps, name_of(type(value)), None, None, None, None])
            self._order.append(value)
        return number

    def _write(self, number: int, value: Any) -> None:
        node, made = self._found.get(id(value)), self._tracker.made.get(id(value))
        if made is not None and (node is None or id(value) not in self._changed):
            return
        assert node is not None
        contents: Contents | None = node.contents
        if (
            made is not None
            and not node.contents.constant
            and any(id(part) in self._lost for part in node.contents.parts)
        ):
            contents = _as_before(node.contents, made.contents, self._lost, self._data)
        if contents is None or contents.kind in ("held", "opaque"):
            return
        fixed = contents.fixed
        if contents.kind == "memory":
            fixed = [fixed[0], fixed[1].tobytes()]
        parts, links = contents.packed(), list[Any]()
        if not contents.constant:
            parts = list(parts)
            for place, part in enumerate(parts):
                if not is_constant(part) or id(part) in self._data:
                    links.append([place, self._number(part)])
                    parts[place] = None
        self.rows[number][2:] = [contents.kind, fixed, parts, links]


def _as_before(contents: Contents, made: Contents, lost: set[int], data: set[int]) -> Contents | None:
    """With the attributes as they were whose objects nobody can make again, unless these are ``data``, which stay what
    stands there; None where all has to stay as it was.
    """
    if contents.kind != "object" or contents.fixed[2] != ATTRIBUTES or contents.fixed[:2] != made.fixed[:2]:
        return None
    how, args, form, names, items, pairs = contents.fixed
    head, values = contents.parts[: 1 + args], contents.parts[1 + args : 1 + args + len(names)]
    tail = contents.parts[1 + args + len(names) :]
    if any(id(part) in lost for part in [*head, *tail]):
        return None
    before = made.attributes()
    kept = {}
    for name, value in zip(names, values):
        if id(value) not in lost or id(value) in data:
            kept[name] = value
        elif name in before:
            kept[name] = before[name]
    return Contents("object", [how, args, form, list(kept), items, pairs], [*head, *kept.values(), *tail], False)
