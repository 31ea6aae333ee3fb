"""Values whose class a state has to name: named tuples, dataclasses, members of enums.

Runs in every process.

A name in a file must not choose what runs. So nothing is imported: a class is found only among the modules that the
program has loaded itself, by looking into dictionaries, and must be a named tuple, a dataclass or an enum. Nothing of
the class is called: no ``__new__``, ``__init__``, ``__post_init__``, ``__setstate__`` or ``_missing_``, and one that
would be called later (``__del__``) rules the class out. Only a set, or the keys of a dict, ask what they hold for its
hash, by the program's own ``__hash__`` and ``__eq__``. A value that would not come back whole in this way is left to
pickle.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
from typing import Any

__all__ = ["NAMED", "ClassMissing", "find_named", "make_named", "take_named"]

NAMED = 40  # a code: part of the format


class ClassMissing(Exception):
    """The class that a state names is not there, or is not what it was."""


def _find(module: Any, qualname: Any) -> Any:
    """The class of this name, if its module is loaded: looks into dictionaries only. None if it is not there."""
    if type(module) is not str or type(qualname) is not str:
        return None
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        if not isinstance(found, types.ModuleType | type):
            return None
        found = vars(found).get(name)
    return found if isinstance(found, type) else None


def find_named(name: str) -> type | None:
    """The named tuple, dataclass or enum of the name ``module:qualname``, if its module is loaded."""
    found = _find(*name.split(":", 1)) if ":" in name else None
    return found if found is not None and _style(found) is not None else None


def _style(kind: Any) -> str | None:
    """``"tuple"``, ``"dataclass"`` or ``"enum"``: how a value of the class is kept; None if it is not kept so."""
    if isinstance(kind, enum.EnumMeta):
        return "enum"
    if getattr(kind, "__del__", None) is not None:
        return None
    if kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__:
        return None
    if kind.__mro__[-2:] == (tuple, object) and _fields_of(kind) is not None:
        return "tuple" if kind.__getstate__ is object.__getstate__ else None
    if not dataclasses.is_dataclass(kind) or kind.__new__ is not object.__new__ or hasattr(kind, "__getnewargs__"):
        return None
    own = [getattr(kind, name, None) for name in ("__getstate__", "__setstate__")]
    made = all(one in (None, object.__getstate__) or getattr(one, "__module__", "") == "dataclasses" for one in own)
    return "dataclass" if made and not hasattr(kind, "__getnewargs_ex__") else None


def _fields_of(kind: Any) -> tuple[str, ...] | None:
    fields = getattr(kind, "_fields", None)
    if isinstance(fields, tuple) and all(isinstance(name, str) for name in fields):
        return fields
    return None


def _members(kind: Any) -> Any:
    return enum.EnumMeta.__members__.__get__(kind)  # not what a class may have instead


def take_named(value: Any) -> list[Any] | None:
    """The parts of a named tuple, dataclass or member of an enum; None if ``value`` is none or would lose something."""
    kind = type(value)
    style = _style(kind)
    if style is None or _find(kind.__module__, kind.__qualname__) is not kind:
        return None
    name = [kind.__module__, kind.__qualname__, style]
    if style == "enum":
        member = getattr(value, "_name_", None)
        return [*name, member] if isinstance(member, str) and _members(kind).get(member) is value else None
    if style == "tuple":
        fields = _fields_of(kind)
        if fields is None or len(fields) != len(value) or getattr(value, "__dict__", None):
            return None
        return [*name, list(fields), *value]
    content = _content(value)
    names = {field.name for field in dataclasses.fields(kind)}
    return [*name, content] if names <= content.keys() else None


def _slots(kind: type) -> dict[str, Any]:
    return {
        name: member
        for base in reversed(kind.__mro__)
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    }


def _content(value: Any) -> dict[str, Any]:
    content = dict(getattr(value, "__dict__", {}))
    for name, member in _slots(type(value)).items():
        try:
            content[name] = member.__get__(value)
        except AttributeError:  # not set
            continue
    return content


def make_named(parts: list[Any]) -> Any:
    """The value again. Raises: ClassMissing; ValueError and the like if the parts do not fit."""
    module, qualname, style, *rest = parts
    kind = _find(module, qualname)
    title = f"{module!s:.80}.{qualname!s:.80}"
    if kind is None:
        raise ClassMissing(
            f"the state holds an item of the class {title}, which is not there: import the module that defines it "
            "before you load the state; if it has been renamed or moved, let the old name stand for it"
        )
    if _style(kind) != style:
        raise ClassMissing(f"the state holds an item of {title} as a {style!s:.20}, which that class is not (any more)")
    if style == "enum":
        (name,) = rest
        member = _members(kind).get(name)
        if member is None:
            raise ClassMissing(
                f"the state holds the member {name!r:.80} of the enum {title}, which has none of that name"
            )
        return member
    if style == "tuple":
        names, *items = rest
        _check_fields(title, names, list(_fields_of(kind) or ()))
        if len(items) != len(names):
            raise ValueError(f"{len(items)} items for the fields {names!r:.80}")
        return tuple.__new__(kind, items)
    (content,) = rest
    if type(content) is not dict or not all(type(name) is str for name in content):
        raise TypeError("the content of a dataclass is no dict of names")
    names = [field.name for field in dataclasses.fields(kind)]
    _check_fields(title, [name for name in names if name in content], names)
    return _filled(kind, content)


def _filled(kind: type, content: dict[str, Any]) -> Any:
    value: Any = object.__new__(kind)
    slots = _slots(kind)
    for name in content.keys() & slots.keys():
        slots[name].__set__(value, content[name])
    rest = {name: item for name, item in content.items() if name not in slots}
    if rest:
        value.__dict__.update(rest)
    return value


def _check_fields(title: str, saved: Any, ours: list[str]) -> None:
    if saved != ours:
        raise ClassMissing(
            f"the state holds an item of {title} with the fields {saved!r:.120}; the class here has {ours}"
        )
