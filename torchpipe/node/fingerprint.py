"""The identity of a graph, for refusing a state that belongs to another one.

Two graphs are the same if their nodes, plain arguments, functions and wiring are. What does not change the stream is
left out: nodes that only move items in time or place, data locations (a run may move to another machine), and the
contents of data (only their type and length count). Of attributes that begin with an underscore only plain arguments
count, not containers and objects, which may be caches; a node's class may name others to be left out in
``fingerprint_ignores``.

Functions count by their names, not by their code, which may be mended between two runs, and by the plain values that
are bound to them: arguments of a partial, what a function made at run time has from around it, and attributes of a
callable object, unless it has a state of its own or they begin with an underscore. Other objects count by their class.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import os
import types
from collections.abc import Mapping, Sized
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

from torchpipe.compat.torch_datapipes import NOTED_IN_NODES
from torchpipe.node.containers import found_in
from torchpipe.node.iterator import is_stateful
from torchpipe.node.traits import DataPipe, callable_name, inputs_of, is_node, traits_of, walk
from torchpipe.state.flat import digest

__all__ = ["describe_bound", "describe_graph", "digest", "fingerprint", "first_difference"]

_LONG_TEXT, _SHOWN = 60, 40
_FEW = 8
_MOST = 1000
_SCALARS = (bool, int, float, complex, str, range, slice, enum.Enum, torch.dtype, torch.device, type)


def describe_graph(root: DataPipe, *, bound: bool = True) -> str:
    """One line for each node that shapes the stream, inputs first: ``3 Mapper(fn=Resize(size=3)) <- 2``.

    Without ``bound``, functions count by their names alone: what is bound to them may differ between ranks.
    """
    numbers: dict[int, int] = {}
    lines: list[str] = []
    for node in walk(root):
        traits = traits_of(node)
        inputs = inputs_of(node)
        if not traits.alters_stream and inputs:
            numbers[id(node)] = numbers[id(inputs[0])]
            continue
        numbers[id(node)] = len(lines)
        ignored = {*traits.fingerprint_ignores, *NOTED_IN_NODES}
        arguments = [
            f"{name}={_argument(value, numbers, bound)}"
            for name, value in sorted(vars(node).items())
            if name not in ignored and not is_node(value) and (not name.startswith("_") or _is_plain(value))
        ]
        wiring = "".join(f" {numbers[id(item)]}" for item in inputs)
        lines.append(f"{len(lines)} {type(node).__qualname__}({', '.join(arguments)})" + (wiring and f" <-{wiring}"))
    return "\n".join(lines)


def fingerprint(root: DataPipe) -> str:
    """Sixteen hexadecimal digits that name the graph; stable between processes, machines and runs."""
    return digest(describe_graph(root))


def first_difference(one: str, other: str) -> tuple[str, str]:
    """The first node that differs between two graphs' descriptions, which are not equal, in each of them."""
    lines = zip_longest(one.splitlines(), other.splitlines(), fillvalue="(no node)")
    return next(pair for pair in lines if pair[0] != pair[1])


def _argument(value: Any, numbers: dict[int, int], bound: bool) -> str:
    if is_node(value):
        return f"#{numbers[id(value)]}"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if callable(value):
        return _function(value) if bound else callable_name(value)
    if value is None or isinstance(value, bool | int | float | complex | range | slice | torch.dtype | torch.device):
        return repr(value)
    if isinstance(value, str):
        return _short(repr(value))
    if isinstance(value, tuple | list) and _is_short(value):
        inner = ", ".join(_argument(item, numbers, bound) for item in value)
        return f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
    if isinstance(value, dict) and len(value) <= _FEW and any(True for _ in found_in(value, is_node)):
        return (
            "{"
            + ", ".join(f"{_argument(key, numbers, bound)}: {_argument(value[key], numbers, bound)}" for key in value)
            + "}"
        )
    name = type(value).__qualname__
    if isinstance(value, Sized):
        try:
            return f"{name}[{len(value)}]"
        except TypeError:  # a 0-dim tensor, a dataset that does not know its length
            return name
    return name


def _is_short(value: tuple[Any, ...] | list[Any]) -> bool:
    """Is it an argument, to be shown whole? Rows of plain values are, and what holds inputs beside other things."""
    if len(value) > _FEW:
        return False
    return all(_is_small(item) for item in value) or any(True for _ in found_in(value, is_node))


def _is_small(value: Any) -> bool:
    return value is None or is_node(value) or isinstance(value, bool | int | float | str)


def _is_plain(value: Any) -> bool:
    """Could it be an argument of the constructor, rather than something that fills while the node is used?"""
    if isinstance(value, tuple | list):
        return len(value) <= _FEW and all(map(_is_small, value))
    return value is None or isinstance(value, _SCALARS) or callable(value)


def describe_bound(fn: Any) -> str:
    """The plain values that are bound to a function, with its name; nothing if there are none."""
    return _value(fn)


def _function(fn: Any, around: tuple[int, ...] = ()) -> str:
    """The name of a function and, in brackets, the values that are bound to it."""
    name = callable_name(fn)
    if id(fn) in around or isinstance(fn, type):
        return name
    around = (*around, id(fn))
    if isinstance(fn, functools.partial):
        given = [_value_or_name(value, around) for value in fn.args]
        given += [f"{key}={_value_or_name(fn.keywords[key], around)}" for key in sorted(fn.keywords)]
        return f"partial({', '.join([_function(fn.func, around), *given])})"
    values = _bound_to(fn)
    texts = {key: _value(values[key], around) for key in sorted(values)}
    shown = ", ".join(f"{key}={text}" for key, text in texts.items() if text)
    return f"{name}({shown})" if shown else name


def _bound_to(fn: Any) -> Mapping[str, Any]:
    if isinstance(fn, types.FunctionType):
        if "<" not in fn.__code__.co_qualname:  # neither a lambda nor within another function: all of it is code
            return {}
        arguments = fn.__code__.co_varnames[: fn.__code__.co_argcount]
        defaults = fn.__defaults__ or ()
        held = {name: _content(cell) for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ())}
        return {**dict(zip(arguments[len(arguments) - len(defaults) :], defaults)), **(fn.__kwdefaults__ or {}), **held}
    if isinstance(fn, types.MethodType | types.BuiltinFunctionType) or is_stateful(fn):
        return {}
    slots = [name for cls in type(fn).__mro__ for name in _slots_of(cls)]
    values = {name: getattr(fn, name) for name in slots if hasattr(fn, name)} | getattr(fn, "__dict__", {})
    return {name: value for name, value in values.items() if not name.startswith("_")}


def _slots_of(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty as yet
        return None


def _value(value: Any, around: tuple[int, ...] = ()) -> str:
    """A plain value that is bound to a function; nothing of another one, or of a function to which none is."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | complex | bytes | range | slice | torch.dtype):
        return _short(repr(value))
    if isinstance(value, str):
        return type(value).__name__ if _is_place(value) else _short(repr(value))
    if isinstance(value, tuple | list | set | frozenset | dict):
        return _short(_container(value, around))
    if isinstance(value, type):
        return callable_name(value)
    if callable(value):
        text = _function(value, around)
        return "" if text == callable_name(value) else text
    if dataclasses.is_dataclass(value) and id(value) not in around:
        fields = [(item.name, getattr(value, item.name, None)) for item in dataclasses.fields(value)]
        shown = ", ".join(f"{name}={_value_or_name(field, (*around, id(value)))}" for name, field in fields)
        return _short(f"{type(value).__qualname__}({shown})")
    return ""


def _value_or_name(value: Any, around: tuple[int, ...]) -> str:
    return _value(value, around) or (callable_name(value) if callable(value) else type(value).__qualname__)


def _container(value: Any, around: tuple[int, ...]) -> str:
    """Of plain values, not too many, all of them."""
    if len(value) > _MOST or id(value) in around:
        return f"{type(value).__qualname__}[{len(value)}]"
    around = (*around, id(value))
    items = [item for pair in value.items() for item in pair] if isinstance(value, dict) else value
    parts = [_value_or_name(item, around) for item in items]
    shown = ", ".join(sorted(parts) if isinstance(value, set | frozenset) else parts)
    return f"({shown})" if isinstance(value, tuple) else f"{type(value).__qualname__}({shown})"


def _is_place(text: str) -> bool:
    """A path or an URL: data may lie elsewhere where a run goes on."""
    return os.path.isabs(text) or text.startswith("~") or "://" in text


def _short(text: str) -> str:
    """As it is shown: in whole, or how it begins and a digest."""
    return text if len(text) <= _LONG_TEXT else f"{text[:_SHOWN]}...#{hashlib.sha256(text.encode()).hexdigest()[:12]}"
