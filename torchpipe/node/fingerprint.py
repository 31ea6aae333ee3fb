"""The identity of a graph, for refusing a state that belongs to another one.

Two graphs are the same if their nodes, plain arguments, the names of their functions and their wiring are. What does
not change the stream is left out: nodes that only move items in time or place, data locations (a run may move to
another machine), and the contents of data (only their type and length count). Of attributes that begin with an
underscore only plain arguments count, not containers and objects, which may be caches; a node's class may name others
to be left out in ``fingerprint_ignores``.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sized
from itertools import zip_longest
from typing import Any

import torch

from torchpipe.node.inputs.containers import found_in
from torchpipe.node.traits import DataPipe, callable_name, inputs_of, is_node, traits_of, walk
from torchpipe.state.flat import digest

__all__ = ["describe_graph", "digest", "fingerprint", "first_difference"]

_LONG_TEXT = 60
_FEW = 8
# What torch's base classes note in a node while it is iterated.
_TORCHS_OWN = ("_valid_iterator_id", "_number_of_samples_yielded", "_snapshot_state", "_fast_forward_iterator")
_SCALARS = (bool, int, float, complex, str, range, slice, enum.Enum, torch.dtype, torch.device, type)


def describe_graph(root: DataPipe) -> str:
    """One line for each node that shapes the stream, inputs first: ``3 Mapper(fn=decode) <- 2``."""
    numbers: dict[int, int] = {}
    lines: list[str] = []
    for node in walk(root):
        traits = traits_of(node)
        if not traits.alters_stream:
            numbers[id(node)] = numbers[id(inputs_of(node)[0])]
            continue
        numbers[id(node)] = len(lines)
        ignored = {*traits.fingerprint_ignores, *_TORCHS_OWN}
        arguments = [
            f"{name}={_argument(value, numbers)}"
            for name, value in sorted(vars(node).items())
            if name not in ignored and not is_node(value) and (not name.startswith("_") or _is_plain(value))
        ]
        wiring = "".join(f" {numbers[id(item)]}" for item in inputs_of(node))
        lines.append(f"{len(lines)} {type(node).__qualname__}({', '.join(arguments)})" + (wiring and f" <-{wiring}"))
    return "\n".join(lines)


def fingerprint(root: DataPipe) -> str:
    """Sixteen hexadecimal digits that name the graph; stable between processes, machines and runs."""
    return digest(describe_graph(root))


def first_difference(one: str, other: str) -> tuple[str, str]:
    """The first node that differs between two graphs' descriptions, which are not equal, in each of them."""
    lines = zip_longest(one.splitlines(), other.splitlines(), fillvalue="(no node)")
    return next(pair for pair in lines if pair[0] != pair[1])


def _argument(value: Any, numbers: dict[int, int]) -> str:
    if is_node(value):
        return f"#{numbers[id(value)]}"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, type) or callable(value):
        return callable_name(value)
    if value is None or isinstance(value, bool | int | float | complex | range | slice | torch.dtype | torch.device):
        return repr(value)
    if isinstance(value, str):
        return repr(value) if len(value) <= _LONG_TEXT else f"str:{hashlib.sha256(value.encode()).hexdigest()[:12]}"
    if isinstance(value, tuple | list) and _is_short(value):
        inner = ", ".join(_argument(item, numbers) for item in value)
        return f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
    if isinstance(value, dict) and len(value) <= _FEW and any(True for _ in found_in(value, is_node)):
        return "{" + ", ".join(f"{_argument(key, numbers)}: {_argument(value[key], numbers)}" for key in value) + "}"
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
