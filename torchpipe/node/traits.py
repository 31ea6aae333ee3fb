"""The questions that any node answers, torchpipe's own or one derived from torch's: inputs, name, a private copy.

Runs in every process.

A node's inputs are the nodes that it holds in its attributes, directly or in ``containers``: they are found by walking
these declared attributes, never by pickling.
"""

from __future__ import annotations

import collections
import copy
import enum
import functools
import random
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import numpy as np
import torch

from torchpipe.compat.torch_datapipes import (
    SHARDING_PRIORITIES,
    TorchIterDataPipe,
    TorchMapDataPipe,
    is_several_outputs,
)
from torchpipe.errors import GraphError
from torchpipe.node.containers import PLAIN, found_in, replaced_in
from torchpipe.node.protocol import NodeProtocol

__all__ = [
    "DataPipe",
    "Division",
    "callable_name",
    "check_single_division",
    "divides",
    "division",
    "goes_on",
    "has_assumption",
    "held_inputs",
    "inputs_of",
    "is_node",
    "is_ours",
    "named_inputs",
    "node_name",
    "pairs",
    "private_copy",
    "reads",
    "reads_late",
    "reads_shared",
    "replaced_in_node",
    "runs_in_main",
    "seeded",
    "stream_arguments",
    "times_read",
    "traits_of",
    "walk",
    "with_inputs",
    "yields_new_tensors",
]

_DEFAULTS = {name: value for name, value in vars(NodeProtocol).items() if not name.startswith("_")}
_MAY_BE_PROPERTIES = ("by_index", "seeded", "yields_new_tensors")
_checked: weakref.WeakSet[type] = weakref.WeakSet()  # classes that say what they may
_OURS = ("torchpipe", "reading_services")
_CALLS_PER_NODE = 7  # 5 to begin a pass over a node, the others for what is around it and within a user's own

DataPipe: TypeAlias = "TorchIterDataPipe[Any] | TorchMapDataPipe[Any]"


def is_node(value: object) -> bool:
    return isinstance(value, TorchIterDataPipe | TorchMapDataPipe)


def _nodes_in(value: object) -> Iterator[DataPipe]:
    return found_in(value, is_node)


def inputs_of(node: DataPipe) -> list[DataPipe]:
    """The nodes that ``node`` reads from, each once, in the order that its class names, or that of its attributes."""
    return list({id(item): item for item in held_inputs(node)}.values())


def held_inputs(node: DataPipe) -> Iterator[DataPipe]:
    """The nodes of :func:`inputs_of`, each as often as ``node`` holds it."""
    named = traits_of(node).inputs
    if named:
        return iter(named_inputs(node))
    # Most attributes are plain, and a graph is walked many times before its first item
    return (item for value in vars(node).values() if type(value) not in PLAIN for item in _nodes_in(value))


def named_inputs(node: DataPipe) -> list[DataPipe]:
    """The nodes in the attributes that the class names in ``inputs``, as often as they stand there.

    Raises: GraphError if an attribute is missing, or holds no node.
    """
    found: list[DataPipe] = []
    for name in traits_of(node).inputs:
        held = list(_nodes_in(vars(node).get(name)))
        if not held:
            what = f"{vars(node)[name]!r:.60}" if name in vars(node) else "nothing"
            raise GraphError(f"{type(node).__name__}.inputs names {name!r}, which holds {what} and no node")
        found += held
    return found


def times_read(node: DataPipe, item: DataPipe) -> int:
    """The number of times that ``node`` reads its input ``item``: as often as its named inputs hold it; else, as one
    attribute holds it: twice in ``zip(item, item)``.
    """
    if traits_of(node).inputs:
        return sum(1 for found in named_inputs(node) if found is item)
    return max(sum(1 for found in _nodes_in(value) if found is item) for value in vars(node).values())


def pairs(node: DataPipe) -> bool:
    """True if ``node`` reads several streams, whose items belong together by their positions, unless it says no."""
    streams = [item for item in inputs_of(node) if not isinstance(item, TorchMapDataPipe)]
    return traits_of(node).pairs is not False and sum(times_read(node, item) for item in streams) > 1


def reads(*roots: DataPipe) -> dict[int, int]:
    """By id, how many passes over each node begin when each of ``roots`` is read once."""
    nodes = {id(node): node for root in roots for node in walk(root)}
    counts = dict.fromkeys(nodes, 0) | {id(root): 1 for root in roots}
    for node in reversed(nodes.values()):
        for item in inputs_of(node):
            times = counts[id(node)] * times_read(node, item)
            counts[id(item)] = max(counts[id(item)], times) if traits_of(item).shared else counts[id(item)] + times
    return counts


def walk(root: DataPipe) -> list[DataPipe]:
    """Every node that ``root`` reaches, each once, inputs before the nodes that read them; ``root`` is last.

    Raises: TypeError if ``root`` is no node; GraphError for a cycle, for too long a chain, and for a node of torch's
    with several outputs.
    """
    if not is_node(root):
        raise TypeError(f"expected an IterDataPipe or MapDataPipe, got {root!r} of type {type(root).__name__}")
    order: list[DataPipe] = []
    done: set[int] = set()
    open_nodes: set[int] = set()
    _check_class(type(root))
    stack: list[tuple[DataPipe, Iterator[DataPipe]]] = [(root, iter(inputs_of(root)))]
    open_nodes.add(id(root))
    while stack:
        node, rest = stack[-1]
        for child in rest:
            if id(child) in open_nodes:
                raise GraphError(f"the graph has a cycle: {node_name(child)} is, through others, its own input")
            if id(child) not in done:
                _check_class(type(child))
                stack.append((child, iter(inputs_of(child))))
                open_nodes.add(id(child))
                _check_depth(len(stack))
                break
        else:
            stack.pop()
            open_nodes.discard(id(node))
            done.add(id(node))
            _check_output(node)
            order.append(node)
    return order


def _check_class(cls: type) -> None:
    """Raises: GraphError if a class says of its nodes what is of another kind than the default, or gives them slots."""
    if cls in _checked:
        return
    for name, default in _DEFAULTS.items() if issubclass(cls, NodeProtocol) else ():
        said = getattr(cls, name)
        if not _is_such(name, said, default):
            raise GraphError(
                f"{cls.__name__}.{name} is {said!r:.60}: what a node's class has of this name says how torchpipe runs "
                f"it, and is {'a method' if callable(default) else f'a value like {default!r}'}. If yours means "
                "something else, give it another name"
            )
    slots = {name for base in cls.__mro__ for name in vars(base).get("__slots__", ())} - {"__dict__", "__weakref__"}
    if slots and not is_ours(cls.__module__):
        raise GraphError(
            f"{cls.__name__} has __slots__ ({', '.join(sorted(slots))}): a pass works on a copy of a node, which is "
            "made of its __dict__. Leave __slots__ out"
        )
    _checked.add(cls)


def _is_such(name: str, said: Any, default: Any) -> bool:
    if said is default or callable(default):
        return said is default or callable(said)
    if name in _MAY_BE_PROPERTIES and isinstance(said, property | functools.cached_property):
        return True
    return isinstance(said, bool | None if default is None else type(default))


def _check_depth(depth: int) -> None:
    """Passes nest in each other, and Python bounds how deep; pickling for workers meets the same bound."""
    limit = sys.getrecursionlimit()
    if depth > limit // _CALLS_PER_NODE:
        raise GraphError(
            f"more than {limit // _CALLS_PER_NODE} nodes stand one behind the other, too many for Python's recursion "
            f"limit of {limit}: join functions (one map() that calls them in turn), and concat() or zip() many inputs "
            "at once"
        )


def _check_output(node: DataPipe) -> None:
    """Torch's nodes of several outputs share one buffer, position and iterator between these: copies of them do not."""
    if is_several_outputs(node):
        name = type(node).__name__.strip("_").removesuffix("IterDataPipe")
        raise GraphError(
            f"{name} of torch or torchdata cannot stand in a graph: its outputs share one buffer, so passes, shards "
            "and resumes would lose and repeat items. Use torchpipe's own, which share a position: "
            "source.fork(2) instead of Forker(source, 2), source.demux(2, fn) instead of Demultiplexer(source, 2, fn)"
        )


def callable_name(fn: object) -> str:
    """A short, stable name for a function, method, class or callable object."""
    inner = getattr(fn, "func", None)  # functools.partial
    if inner is not None and callable(inner):
        return f"partial({callable_name(inner)})"
    name = getattr(fn, "__qualname__", None)
    if not isinstance(name, str):
        return type(fn).__qualname__
    own, module = getattr(fn, "__name__", ""), sys.modules.get(str(getattr(fn, "__module__", "")))
    if name.startswith("_") and getattr(module, own, None) is fn:  # torch.stack is a method of a hidden class
        return str(own)
    return name.rpartition("<locals>.")[2]


def node_name(node: object) -> str:
    """The name of a node in errors and drawings: its class and, in brackets, its function if it has one; or its own
    ``node_title``, where users know it as something else.
    """
    title = getattr(node, "node_title", None)
    if title is not None:
        return str(title)
    names = [
        callable_name(value)
        for value in getattr(node, "__dict__", {}).values()
        if callable(value) and not is_node(value) and not isinstance(value, type)
    ]
    return f"{type(node).__name__}({', '.join(names)})" if names else type(node).__name__


def traits_of(node: DataPipe) -> type[NodeProtocol]:
    """The traits of the class of ``node``. One that is derived from torch's has the defaults for those that it does not
    set, or means otherwise.
    """
    cls = type(node)
    if issubclass(cls, NodeProtocol):
        return cls
    declared = {name: getattr(cls, name, default) for name, default in _DEFAULTS.items()}
    meant = {name: said for name, said in declared.items() if _is_such(name, said, _DEFAULTS[name])}
    return cast("type[NodeProtocol]", SimpleNamespace(**_DEFAULTS | meant))


def runs_in_main(node: DataPipe) -> bool:
    """True if ``node`` must run in the user's process."""
    traits = traits_of(node)
    is_replicable: Any = traits.is_replicable
    return traits.runs_in_main or (callable(is_replicable) and not is_replicable(node))


def divides(node: DataPipe) -> bool:
    """True for sharding points: nodes that keep one shard's part of the stream."""
    return callable(getattr(type(node), "apply_sharding", None)) or traits_of(node).divides


def has_assumption(node: Any) -> bool:
    """True if the stream depends on what is no part of the graph's identity: ``node.assumption()`` says it as data.

    It is saved where nothing else is, and is in ``Context.assumed`` when all is made again from the start.
    """
    return callable(getattr(type(node), "assumption", None))


def goes_on(node: Any) -> bool:
    """True if a pass changes it, so that the next one begins where that has ended: its ``assumption()`` says where.

    ``node.begins_again(seed, epoch)`` is asked where that pass was left in its midst: True once it is as it was made,
    so that the pass can be led to there; False if it stands as the pass leaves it wherever it is left.
    """
    return has_assumption(node) and getattr(type(node), "goes_on", False) is True


def is_ours(module: object) -> bool:
    """True if ``module``, the name of one, is of torchpipe or of reading_services: no code of the user's."""
    return str(module).partition(".")[0] in _OURS


def stream_arguments(node: Any) -> dict[str, Any]:
    """Its attributes, but for those that do not alter the stream."""
    return {name: value for name, value in vars(node).items() if name not in node.fingerprint_ignores}


def yields_new_tensors(node: DataPipe) -> bool:
    """True if each item's tensors have memory of their own, also behind nodes that hand on the same objects."""
    while traits_of(node).alters_stream is False and is_ours(type(node).__module__):
        (node,) = inputs_of(node)
    return isinstance(node, NodeProtocol) and node.yields_new_tensors is True


def seeded(node: DataPipe) -> bool:
    """True if the loader's seed and epoch decide which items ``node`` itself gives, or in which order."""
    declared = node.seeded if isinstance(node, NodeProtocol) else getattr(node, "seeded", None)
    return callable(getattr(type(node), "set_seed", None)) if declared is None else declared is True


def reads_late(node: DataPipe) -> bool:
    """True if a shard can pass over what others keep, at this node and before it, without making those items.

    So it is of sources that are read by index, of map-style nodes, and of what only selects among such (``positions``).
    """
    if isinstance(node, TorchMapDataPipe) or (isinstance(node, NodeProtocol) and node.by_index is True):
        return True
    return traits_of(node).selects is True and all(map(reads_late, inputs_of(node)))


def reads_shared(node: DataPipe) -> bool:
    """True if ``node`` reads, perhaps through others, from a pass that it may share."""
    return any(traits_of(item).shared for item in walk(node) if item is not node)


class Division(enum.Flag):
    """Among whom a sharding point divides the stream: the ranks, the shards of one rank, or all shards of all ranks."""

    NONE = 0
    RANKS = enum.auto()
    SHARDS = enum.auto()
    BOTH = RANKS | SHARDS


def division(node: DataPipe) -> Division:
    """The division at ``node`` itself. Its ``sharding_group_filter``, if it has one, says so, as in torch."""
    if not divides(node):
        return Division.NONE
    match getattr(node, "sharding_group_filter", None):
        case SHARDING_PRIORITIES.DISTRIBUTED:
            return Division.RANKS
        case SHARDING_PRIORITIES.MULTIPROCESSING:
            return Division.SHARDS
        case _:
            return Division.BOTH


def check_single_division(nodes: Iterable[DataPipe], before: Division = Division.NONE, where: str = "") -> None:
    """Raises: GraphError if one of ``nodes``, inputs first, divides what has been divided already: by another of them,
    or among ``before`` at the place ``where`` they are read.
    """
    divided_by: dict[int, dict[Division, str]] = {}
    outside = dict.fromkeys(before, f"a node before {where}")
    for node in nodes:
        above = dict(outside)
        for item in inputs_of(node):
            above |= divided_by.get(id(item), {})
        for among in division(node):
            if among in above:
                raise GraphError(
                    f"two sharding points on one path: {node_name(node)} divides what {above[among]} has divided "
                    "already, so items would be lost. Keep the one that stands nearer to the source (only DISTRIBUTED "
                    "and MULTIPROCESSING ones go together)"
                )
        divided_by[id(node)] = above | dict.fromkeys(division(node), node_name(node))


_COPIED = (list, dict, set, bytearray, collections.deque, random.Random)


def with_inputs(node: Any, replace: Callable[[DataPipe], DataPipe], *, private: bool = False) -> Any:
    """A copy of ``node`` whose inputs went through ``replace``; ``node`` itself is left as it is.

    ``private`` also copies the containers and generators it holds, for nodes that keep their state in themselves.
    """
    return replaced_in_node(node, is_node, replace, private=private)


def replaced_in_node(
    node: Any, wanted: Callable[[Any], bool], replace: Callable[[Any], Any], *, private: bool = False
) -> Any:
    """A copy of ``node`` in which all that is ``wanted``, in its attributes and in containers there, is replaced."""
    clone = object.__new__(type(node))
    for name, value in vars(node).items():
        value = replaced_in(value, wanted, replace)
        clone.__dict__[name] = _own(value) if private else value
    return clone


def private_copy(value: Any) -> Any:
    """A copy of an object of the user's with containers and generators of its own; itself if it cannot be copied."""
    try:
        clone = copy.copy(value)
        vars(clone).update({name: _own(part) for name, part in vars(value).items()})
    except Exception:  # objects refuse in many ways
        return value
    return clone


def _own(value: Any) -> Any:
    if isinstance(value, _COPIED):
        return copy.copy(value)
    if isinstance(value, torch.Generator):
        return value.clone_state()
    return copy.deepcopy(value) if isinstance(value, np.random.Generator | np.random.RandomState) else value
