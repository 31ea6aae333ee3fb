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
from torchpipe.node.traits import (
    DataPipe,
    Division,
    callable_name,
    division,
    is_node,
    node_name,
    replaced_in_node,
    traits_of,
    with_inputs,
)
from torchpipe.randomness.seeds import derive_seed

if TYPE_CHECKING:
    from torchpipe.node.context import Context

__all__ = ["for_pass", "has_state", "own_functions", "with_state"]


def for_pass(node: DataPipe, context: Context, *, is_torchs: bool) -> tuple[Any, Context, list[Any]]:
    """``node`` itself where nothing in it changes during a pass, else a copy of it; the context in which the copy has
    the node's place; and the copied functions, in the order of the node's attributes.

    Torch's protocols are honoured: ``apply_sharding`` is called on the copy unless the class divides by itself, and
    ``set_seed`` unless its class says what ``seeded`` is. ``is_torchs``: its own ``__iter__`` runs, which does neither.
    """
    traits = traits_of(node)
    divide = not context.asks_nodes and _own_method(node, "apply_sharding") and (is_torchs or not traits.divides)
    seed = _own_method(node, "set_seed") and (is_torchs or getattr(node, "seeded", None) is None)
    private, functions = own_functions(node)
    if divide or seed:
        private = with_inputs(private, lambda item: item, private=True)
    if private is node:
        return node, context, functions
    if divide:
        _tell_shard(private, node, context)
    if seed:
        private.set_seed(derive_seed(*context.stream_key(node)) >> 1)  # torch's nodes take 63 bits
    return private, replace(context, graph=context.graph.with_copy(private, node)), functions


def own_functions(node: DataPipe) -> tuple[Any, list[Any]]:
    """``node`` with copies of the functions that have state, or itself if it has none; and the copies."""
    copies: dict[int, Any] = {}
    for value in vars(node).values():
        if type(value) not in PLAIN:
            for fn in with_state(value):
                if id(fn) not in copies:
                    copies[id(fn)] = _copy(fn, node)
    if not copies:
        return node, []

    def copied(fn: Any) -> Any:
        return copies[id(fn)] if id(fn) in copies else _with_others(fn, copied)

    return replaced_in_node(node, _is_followed, copied), list(copies.values())


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


def _copy(fn: Any, node: DataPipe) -> Any:
    try:
        return copy.deepcopy(fn)
    except Exception as error:  # objects refuse in many ways
        add_note(
            error, f"torchpipe: {callable_name(fn)} of {node_name(node)} has state, so each pass needs a copy of it"
        )
        raise


def _tell_shard(private: Any, node: DataPipe, context: Context) -> None:
    among = division(node)
    group = () if among is Division.BOTH else (getattr(node, "sharding_group_filter", None),)
    parts, part = context.share(among)
    if parts > 1:  # of one part, what torch's own loaders have told the node holds
        private.apply_sharding(parts, part, *group)


def _own_method(node: Any, name: str) -> Callable[..., Any] | None:
    method = getattr(type(node), name, None)
    return getattr(node, name) if inspect.isfunction(method) else None
