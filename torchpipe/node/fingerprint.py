"""The identity of a graph, for refusing a state that belongs to another one.

Two graphs are the same if their nodes, arguments, functions and wiring are. An argument counts in full, as
:func:`~torchpipe.node.describe.describe` tells it, unless the node's class names it: what is in ``fingerprint_data``
is data, and compared by what identifies them; what is in ``fingerprint_ignores`` does not alter the stream (threads,
caches, where data lie). Nodes that only move items in time or place are left out.

Of attributes that begin with an underscore those count that cannot change, such as numbers, texts, tuples and
functions; lists, dicts and objects under such a name are taken for caches.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import torch

from torchpipe.compat.torch_datapipes import NOTED_IN_NODES
from torchpipe.node.describe import describe, describe_data, opened_in
from torchpipe.node.traits import DataPipe, held_inputs, inputs_of, is_node, traits_of, walk
from torchpipe.state.flat import digest

__all__ = ["altering", "describe_graph", "digest", "fingerprint", "first_argument", "first_difference", "without_data"]

_UNCHANGING = (bool, int, float, complex, str, bytes, tuple, frozenset, range, slice)
_NAMED = re.compile(r"(?:\(|, )(?P<name>[^\W\d]\w*)=")
_NAMES = (enum.Enum, torch.dtype, torch.device, type)


def describe_graph(root: DataPipe, *, bound: bool = True) -> str:
    """One line for each node that shapes the stream, inputs first: ``3 Mapper(fn=Resize(size=3)) <- 2``.

    Without ``bound``, functions count by their names alone and data by their length: what is bound to them may differ
    between ranks.
    """
    numbers: dict[int, int] = {}
    lines: list[str] = []
    for node in walk(root):
        traits = traits_of(node)
        if not _alters(node):
            numbers[id(node)] = numbers[id(inputs_of(node)[0])]
            continue
        numbers[id(node)] = len(lines)
        ignored = {*traits.fingerprint_ignores, *NOTED_IN_NODES}
        arguments = [
            f"{name}={_argument(name, value, node, numbers, bound)}"
            for name, value in sorted(vars(node).items())
            if name not in ignored and not is_node(value) and (not name.startswith("_") or _is_unchanging(value))
        ]
        wiring = "".join(f" {numbers[id(item)]}" for item in held_inputs(node))
        lines.append(f"{len(lines)} {type(node).__qualname__}({', '.join(arguments)})" + (wiring and f" <-{wiring}"))
    return "\n".join(lines)


def altering(root: DataPipe) -> Iterator[DataPipe]:
    """The nodes that :func:`describe_graph` has a line for, in its order."""
    return filter(_alters, walk(root))


def _alters(node: DataPipe) -> bool:
    return traits_of(node).alters_stream or not inputs_of(node)


def without_data(graph_text: str, root: DataPipe) -> str:
    """A description of a graph like ``root``, but for the arguments that are data."""
    names = {type(node).__qualname__: traits_of(node).fingerprint_data for node in walk(root)}
    lines = []
    for line in graph_text.splitlines():
        head = line.partition("(")[0]
        data = names.get(head.partition(" ")[2], ())
        kept = [f"{name}={value}" for name, value in _arguments(line).items() if name not in data]
        lines.append(f"{head}({', '.join(kept)}" if data else line)
    return "\n".join(lines)


def _argument(name: str, value: Any, node: DataPipe, numbers: dict[int, int], bound: bool) -> str:
    if name in traits_of(node).fingerprint_data:
        return describe_data(value, numbers, bound=bound)
    return describe(value, numbers, bound=bound)


def _is_unchanging(value: Any) -> bool:
    """True if it may be an argument of the constructor, rather than something that fills while the node is used."""
    return value is None or isinstance(value, _UNCHANGING + _NAMES) or callable(value)


def fingerprint(root: DataPipe) -> str:
    """Sixteen hexadecimal digits that name the graph; stable between processes, machines and runs."""
    return digest(describe_graph(root))


def first_difference(one: str, other: str) -> tuple[str, str]:
    """The first node that differs between two graphs' descriptions, which are not equal, in each of them."""
    lines = zip_longest(one.splitlines(), other.splitlines(), fillvalue="(no node)")
    return next(pair for pair in lines if pair[0] != pair[1])


def first_argument(one: str, other: str) -> str | None:
    """The name of the first argument that differs between two lines of one node; None if it is no argument."""
    found, others = _arguments(one), _arguments(other)
    return next((name for name in found | others if found.get(name) != others.get(name)), None)


def _arguments(line: str) -> dict[str, str]:
    """The arguments in the line of a node, by name."""
    named = [match for match in _NAMED.finditer(line) if opened_in(line[: match.start("name")]) == ["("]]
    ends = [match.start() for match in named[1:]] + [len(line.rpartition(" <- ")[0] or line) - 1]  # the bracket
    return {match["name"]: line[match.end() : end].rstrip(", ") for match, end in zip(named, ends)}
