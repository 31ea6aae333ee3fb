"""Strict mode: is an item that a node keeps still as it came, when it is used?

Runs in every process that executes a part of a graph. Asked for by ``TORCHPIPE_STRICT=1`` and by
``torchpipe.testing``; without it nothing here runs.

A node that keeps items (``NodeIterator.keeps_items``) has a keeper. It takes a digest of each item as it comes from the
input, and compares it when the item is handed out, comes again, or is saved in a state. Functions of the user's are
looked at as they return: one that has changed what a node keeps is named.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torchpipe.errors import ItemChangedError, StateError
from torchpipe.node.traits import callable_name, is_ours, node_name
from torchpipe.node.user_warnings import warn_user
from torchpipe.state import encode, opaque_notes
from torchpipe.state.copying import CONTAINERS, holds_mutable, walk_parts

if TYPE_CHECKING:
    from torchpipe.node.iterator import NodeIterator
    from torchpipe.node.traits import DataPipe

__all__ = ["Keeper", "check_kept", "is_strict", "keeper_of", "looked_after", "watch_inputs", "watched"]

# Of one node are looked after, since some items are never seen again:
_MOST_HELD, _MOST_BYTES = 100_000, 1 << 28
_PYTHONS = frozenset({"builtins", "functools", "operator"})


def is_strict() -> bool:
    """True if the environment asks for the strict mode (``TORCHPIPE_STRICT=1``)."""
    return os.environ.get("TORCHPIPE_STRICT", "0") not in ("", "0")


@dataclass(slots=True)
class _Held:
    item: Any  # so that its id stays its own
    digest: bytes | None
    nbytes: int
    times: int = 1  # that it came


class Keeper:
    """The items that a pass over ``node`` keeps, each with a digest as it came; ``on``: from one item to the next."""

    def __init__(self, node: DataPipe, *, on: bool = True) -> None:
        self.node = node
        self._on = on
        self._held: dict[int, _Held] = {}  # by id, the oldest first
        self._nbytes = 0

    def coming(self, stream: Iterator[Any]) -> Iterator[Any]:
        """The input's ``stream``: each item is taken down."""
        for item in stream:
            self.came(item)
            held = [item]
            del item
            yield held.pop()

    def going(self, stream: Iterator[Any]) -> Iterator[Any]:
        """The node's own ``stream``: each item is compared with what came, also those within lists and dicts."""
        for item in stream:
            self.used(item)
            if not self._on:
                self._held.clear()
                self._nbytes = 0
            held = [item]
            del item
            yield held.pop()

    def came(self, item: Any) -> None:
        for part in _parts(item):
            self._compare(part, "came again")
            if id(part) in self._held:
                self._held[id(part)].times += 1
            elif (data := _data(part)) is not None:
                self._held[id(part)] = _Held(part, _digest_of(data), len(data))
                self._nbytes += len(data)
                while len(self._held) > 1 and (len(self._held) > _MOST_HELD or self._nbytes > _MOST_BYTES):
                    self._forget(next(iter(self._held)))

    def _forget(self, key: int) -> None:
        self._nbytes -= self._held.pop(key).nbytes

    def used(self, item: Any, *, stays: bool = False) -> None:
        """``item`` is handed out, and is no longer this node's unless it ``stays``."""
        for part in _parts(item):
            self._compare(part, "was to be handed out")
            held = None if stays else self._held.get(id(part))
            if held is not None:
                held.times -= 1
                if not held.times:
                    self._forget(id(part))

    def saved(self, item: Any) -> None:
        for part in _parts(item):
            self._compare(part, "was saved in a state")

    def changed(self, item: Any) -> list[Any]:
        """The kept objects in ``item`` that have changed since they came."""
        return [part for part in _parts(item) if self._differs(part)]

    def let_change(self, item: Any) -> None:
        """The node's own function has changed it: that is how it is kept."""
        for part in self.changed(item):
            self._held[id(part)].digest = _digest(part)

    def _differs(self, part: Any) -> bool:
        held = self._held.get(id(part))
        return held is not None and _digest(part) != held.digest

    def _compare(self, part: Any, when: str) -> None:
        if self._differs(part):
            raise ItemChangedError(
                f"{node_name(self.node)} keeps an item that was changed in place before it {when}: "
                f"{type(part).__name__} {part!r:.200}. A resume would see it as it came, or changed twice. Who changes "
                "it holds it too: a node before that hands out one object several times, or a function that keeps what "
                "it has returned. Hand out copies there"
            )


def keeper_of(iterator: NodeIterator[Any]) -> Keeper | None:
    """The keeper that looks after the items which ``iterator`` keeps, in strict mode; else None."""
    engine = iterator.pass_engine
    if engine.keeper is None and iterator.keeps_items and engine.context.host.strict:
        engine.keeper = Keeper(engine.node, on=engine.has_position)
        engine.context.shared.keepers.append(engine.keeper)
    return engine.keeper


def watch_inputs(iterator: NodeIterator[Any]) -> None:
    """In strict mode, let items of the inputs be taken down as they come. Called before any is pulled."""
    keeper = keeper_of(iterator)
    if keeper is not None:
        for item in iterator.inputs:
            item.pass_engine.consumer = keeper


def looked_after(iterator: NodeIterator[Any], stream: Iterator[Any]) -> Iterator[Any]:
    """``stream``, that of ``iterator``: in strict mode, what it keeps is compared, and what another one keeps noted."""
    if not iterator.context.host.strict:
        return stream
    watch_inputs(iterator)
    keeper, consumer = keeper_of(iterator), iterator.pass_engine.consumer
    stream = stream if keeper is None else keeper.going(stream)
    return stream if consumer is None else consumer.coming(stream)


def check_kept(iterator: NodeIterator[Any], items: list[Any]) -> None:
    """``items``, which ``iterator`` keeps, are to be saved.

    Raises: ItemChangedError; TypeError without ``keeps_items``.
    """
    keeper = keeper_of(iterator)
    if keeper is not None:
        for item in items:
            keeper.saved(item)
    elif holds_mutable(items):
        raise TypeError(
            f"{type(iterator).__name__} saves items that it keeps: let it say so, keeps_items = True, so that these "
            "can be looked after"
        )


def watched(fn: Any, called: Any, node: DataPipe, own: Keeper | None, keepers: list[Keeper]) -> Any:
    """``called``, which calls ``fn``, a function of the user's: an error if it changes what another node keeps, and a
    warning if it changes itself and has no state.
    """
    remembered = _memory_of(fn)
    warned = remembered is None

    @functools.wraps(fn, updated=())
    def call(*args: Any) -> Any:
        nonlocal warned
        result = called(*args)
        if not warned and _memory_of(fn) != remembered:
            warned = True
            warn_user(
                f"{callable_name(fn)} in {node_name(node)} changes its own attributes when it is called, and has no "
                "state_dict() and load_state_dict(). If its results depend on them, the stream depends on which shards "
                "share a process, and on every resume: give it both",
                UserWarning,
            )
        for item in args:
            if own is not None:
                own.let_change(item)
            for keeper in keepers:
                for part in keeper.changed(item):
                    raise ItemChangedError(
                        f"{callable_name(fn)} in {node_name(node)} has changed an item in place that "
                        f"{node_name(keeper.node)} still keeps: {type(part).__name__} {part!r:.200}. Let it change a "
                        "copy, or let the node hand out copies"
                    )
        return result

    call.__qualname__ = callable_name(fn)
    return call


def _memory_of(fn: Any) -> bytes | None:
    """A digest of the attributes of a callable object of the user's; None if it has a state, or is no such object."""
    kind = type(fn)
    plain = isinstance(fn, type | torch.nn.Module) or kind.__module__ in _PYTHONS or is_ours(kind.__module__)
    has_state = callable(getattr(fn, "state_dict", None))
    return None if plain or has_state else _digest(getattr(fn, "__dict__", {}))


def _parts(item: Any) -> Iterator[Any]:
    """``item``, if it can be changed in place, and what can be within its containers."""
    for part in walk_parts(item, lambda part: isinstance(part, CONTAINERS)):
        if holds_mutable((part,)) and not isinstance(part, tuple):
            yield part


def _digest(item: Any) -> bytes | None:
    data = _data(item)
    return None if data is None else _digest_of(data)


def _digest_of(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _data(item: Any) -> bytes | None:
    """None for what is not plain data: an object may look otherwise to pickle without having changed."""
    try:
        data = encode(item)
    except StateError:
        return None
    return None if opaque_notes(data) else data
