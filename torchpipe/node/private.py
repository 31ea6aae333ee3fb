"""A node as one pass sees it: with copies of the functions that have state, and told its shard and its seed.

Runs in every process that executes a part of a graph, where a pass over a node begins.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchpipe.errors import add_note
from torchpipe.node.containers import PLAIN, found_in, replaced_in
from torchpipe.node.iterator import is_stateful
from torchpipe.node.own_copy import OwnCopy
from torchpipe.node.traits import (
    DataPipe,
    Division,
    callable_name,
    division,
    is_node,
    node_name,
    replaced_in_node,
    traits_of,
)
from torchpipe.randomness.seeds import derive_seed

if TYPE_CHECKING:
    from torchpipe.node.context import Context

__all__ = ["for_pass", "has_state", "own_copy", "own_for_pass", "own_functions", "with_state"]


def for_pass(node: DataPipe, context: Context) -> tuple[Any, Context, list[Any]]:
    """``node`` itself where nothing in it changes during a pass, else a copy of it; the context in which the copy has
    the node's place; and the copied functions, in the order of the node's attributes.
    """
    tell = _messages_for(node, context, is_torchs=False)
    if tell:
        own = own_copy(node)
        private, functions = own.of(node), [own.of(fn) for fn in _functions_of(node)]
    else:
        private, functions = own_functions(node)
    if private is node:
        return node, context, functions
    for say in tell:
        say(private)
    return private, replace(context, graph=context.graph.with_copy(private, node)), functions


def own_for_pass(node: DataPipe, context: Context, bind: Callable[[DataPipe], DataPipe]) -> tuple[OwnCopy, list[Any]]:
    """The copy that a node's own ``__iter__`` runs on, whose inputs went through ``bind``; the copied functions."""
    own = own_copy(node, bind)
    for say in _messages_for(node, context, is_torchs=True):
        say(own.of(node))
    return own, [own.of(fn) for fn in _functions_of(node)]


def own_copy(node: DataPipe, replace: Callable[[DataPipe], DataPipe] = lambda item: item) -> OwnCopy:
    """Raises: whatever copying a function that has state raises."""
    return _copies(node, node, replace=replace, whole=_functions_of(node))


def _messages_for(node: DataPipe, context: Context, *, is_torchs: bool) -> list[Callable[[Any], None]]:
    """The calls of a pass to its copy, by torch's protocols: ``apply_sharding``, unless the class divides by itself,
    and ``set_seed``, unless its class says what ``seeded`` is. ``is_torchs``: its own ``__iter__`` does neither.
    """
    divided = context.divided_by_torch or not (is_torchs or not traits_of(node).divides)
    told: list[Callable[[Any], None]] = []
    if _has_method(node, "apply_sharding") and not divided:
        told.append(lambda private: _tell_shard(private, node, context))
    if _has_method(node, "set_seed") and (is_torchs or getattr(node, "seeded", None) is None):
        seed = derive_seed(*context.stream_key(node)) >> 1  # torch's nodes take 63 bits
        told.append(lambda private: private.set_seed(seed))
    return told


def own_functions(node: DataPipe) -> tuple[Any, list[Any]]:
    """``node`` with copies of the functions that have state, or itself if it has none; and the copies."""
    found = _functions_of(node)
    if not found:
        return node, []
    own = _copies(node, whole=found)
    copies = {id(fn): own.of(fn) for fn in found}

    def copied(fn: Any) -> Any:
        return copies[id(fn)] if id(fn) in copies else _with_others(fn, copied)

    return replaced_in_node(node, _is_followed, copied), list(copies.values())


def _functions_of(node: DataPipe) -> list[Any]:
    """The functions that have state, each once, in the order of the node's attributes."""
    found = (fn for value in vars(node).values() if type(value) not in PLAIN for fn in with_state(value))
    return list({id(fn): fn for fn in found}.values())


def _copies(node: DataPipe, *roots: Any, whole: list[Any], **options: Any) -> OwnCopy:
    try:
        return OwnCopy(*roots, whole=whole, **options)
    except Exception as error:  # objects refuse in many ways
        names = ", ".join(map(callable_name, whole))
        add_note(error, f"torchpipe: {names} of {node_name(node)} has state, so each pass needs a copy of it")
        raise


def with_state(value: Any) -> Iterator[Any]:
    """The objects with state in ``value``, a function or an attribute of a node: functions, in containers too, and
    those that a ``functools.partial`` calls or hands over.
    """
    return _with_state(value, _is_followed)


def has_state(fn: Any) -> bool:
    return next(with_state(fn), None) is not None


def _with_state(value: Any, wanted: Callable[[Any], bool]) -> Iterator[Any]:
    for found in found_in(value, wanted):
        if _has_state(found):
            yield found
        else:
            yield from _with_state(_held_by(found), _is_followed_in_partial)


def _is_followed(value: Any) -> bool:
    return isinstance(value, functools.partial) or (callable(value) and _has_state(value))


def _is_followed_in_partial(value: Any) -> bool:
    return isinstance(value, functools.partial) or _has_state(value)


def _has_state(value: Any) -> bool:
    return not isinstance(value, type) and not is_node(value) and is_stateful(value)


def _held_by(fn: functools.partial[Any]) -> tuple[Any, ...]:
    return fn.func, fn.args, fn.keywords


def _with_others(fn: functools.partial[Any], replace: Callable[[Any], Any]) -> functools.partial[Any]:
    """``fn`` that calls and hands over other objects, where it holds some that are replaced."""
    held = _held_by(fn)
    others = replaced_in(held, _is_followed_in_partial, replace)
    if others is held:
        return fn
    made = copy.copy(fn)
    made.__setstate__((*others, vars(fn)))  # type: ignore[attr-defined]  # as pickle and copy make one
    return made


def _tell_shard(private: Any, node: DataPipe, context: Context) -> None:
    among = division(node)
    group = () if among is Division.BOTH else (getattr(node, "sharding_group_filter", None),)
    parts, part = context.share(among)
    if parts > 1:  # of one part, what torch's own loaders have told the node holds
        private.apply_sharding(parts, part, *group)


def _has_method(node: Any, name: str) -> bool:
    return inspect.isfunction(getattr(type(node), name, None))
