"""The nodes of a graph that run code of the user's. Runs wherever a pass begins."""

from __future__ import annotations

from typing import Any

from torchpipe.compat.torch_datapipes import DataChunk
from torchpipe.node.containers import PLAIN
from torchpipe.node.traits import DataPipe, is_node, is_ours, walk

__all__ = ["node_runs_users_code", "runs_users_code"]

_PLAIN = PLAIN | {complex, range}
_MADE = (list, tuple, dict, DataChunk)  # classes that a node may hold, to make items of


def runs_users_code(graph: DataPipe) -> bool:
    """True if any code of the user's runs in ``graph``, which may draw from the global random states.

    None does where all nodes are torchpipe's and hold plain data alone, items included: their own random choices come
    from keyed streams.
    """
    return any(map(node_runs_users_code, walk(graph)))


def node_runs_users_code(node: DataPipe) -> bool:
    """The same of ``node`` without its inputs."""
    if not is_ours(type(node).__module__):
        return True
    return not all(is_node(value) or _is_plain(value) for value in vars(node).values())


def _is_plain(value: Any) -> bool:
    """True if ``value`` is data of Python's own types, in lists, tuples and dicts, and nodes."""
    waiting, seen = [value], set[int]()
    while waiting:
        item = waiting.pop()
        if type(item) in (list, tuple, dict):
            if id(item) in seen:
                continue
            seen.add(id(item))
            if type(item) is dict:
                waiting += [*item, *item.values()]
            elif not set(map(type, item)) <= _PLAIN:
                waiting += item
        elif not (type(item) in _PLAIN or is_node(item) or any(item is kind for kind in _MADE) or _is_own(item)):
            return False
    return True


def _is_own(item: Any) -> bool:
    """True if ``item`` is of a class of torchpipe's that says ``holds_only_data``: nothing of the user's is in it."""
    kind = type(item)
    return is_ours(kind.__module__) and getattr(kind, "holds_only_data", False) is True
