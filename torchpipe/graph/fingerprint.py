"""The identity of a graph, for refusing a state that belongs to another one. Imports ``nodes``.

Two graphs are the same if their nodes, plain arguments, the names of their functions and their wiring are. What does
not change the stream is left out: nodes that only move items in time or place, data locations (a run may move to
another machine), and the contents of data (only their type and length count).
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sized
from functools import lru_cache
from typing import Any

import torch

from torchpipe.nodes import DataPipe, alters_stream, callable_name, inputs_of, is_node, walk

__all__ = ["describe_graph", "digest", "fingerprint"]

_LONG_TEXT = 60


def describe_graph(root: DataPipe) -> str:
    """One line for each node that shapes the stream, inputs first: ``3 Mapper(fn=decode) <- 2``."""
    numbers: dict[int, int] = {}
    lines: list[str] = []
    for node in walk(root):
        if not alters_stream(node):
            numbers[id(node)] = numbers[id(inputs_of(node)[0])]
            continue
        numbers[id(node)] = len(lines)
        ignored = getattr(type(node), "fingerprint_ignores", ())
        arguments = [
            f"{name}={_argument(value, numbers)}"
            for name, value in sorted(vars(node).items())
            if not name.startswith("_") and name not in ignored and not is_node(value)
        ]
        wiring = "".join(f" {numbers[id(item)]}" for item in inputs_of(node))
        lines.append(f"{len(lines)} {type(node).__qualname__}({', '.join(arguments)})" + (wiring and f" <-{wiring}"))
    return "\n".join(lines)


def fingerprint(root: DataPipe) -> str:
    """Sixteen hexadecimal digits that name the graph; stable between processes, machines and runs."""
    return digest(describe_graph(root))


@lru_cache(maxsize=64)
def digest(graph_text: str) -> str:
    """The fingerprint that belongs to a text from :func:`describe_graph`."""
    return hashlib.sha256(graph_text.encode()).hexdigest()[:16]


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
    if isinstance(value, tuple | list) and len(value) <= 8 and all(_is_small(item) for item in value):
        inner = ", ".join(_argument(item, numbers) for item in value)
        return f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
    name = type(value).__qualname__
    if isinstance(value, Sized):
        try:
            return f"{name}[{len(value)}]"
        except TypeError:  # a 0-dim tensor, a dataset that does not know its length
            return name
    return name


def _is_small(value: Any) -> bool:
    return value is None or is_node(value) or isinstance(value, bool | int | float | str)
