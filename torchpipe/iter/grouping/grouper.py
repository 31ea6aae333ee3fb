"""``groupby``: items of one key together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

from torchpipe.errors import StateError
from torchpipe.iter._shared.bases import OneInput
from torchpipe.node.context import Context
from torchpipe.node.datapipe import DataChunk, IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator, stored_items
from torchpipe.node.plain import checked_key
from torchpipe.node.validate import check_columns, check_count

__all__ = ["Grouper"]

T = TypeVar("T")


class _GroupIterator(NodeIterator[Any]):
    node: Grouper
    keeps_items = True

    def __init__(self, node: Grouper, context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.key_fn = self.with_retries(node.group_key_fn)
        self.groups: dict[Hashable, list[Any]] = {}
        self.waiting = 0  # items in them

    def get_state(self) -> dict[str, Any]:
        return {"groups": [[key, self.kept_items(items)] for key, items in self.groups.items()]}

    def set_state(self, state: dict[str, Any]) -> None:
        pairs = stored_items(state, "groups", at_most=self.node.buffer_size)
        self.groups = {key: list(items) for key, items in pairs}
        self.waiting = sum(map(len, self.groups.values()))
        if len(self.groups) != len(pairs) or not all(self.groups.values()) or self.waiting > self.node.buffer_size:
            raise StateError(
                f"{len(pairs)} groups of {self.waiting} items are in the state, where each has a key of its own and at "
                f"least one item, and all have {self.node.buffer_size} at most"
            )

    def leave_out(self) -> bool:
        return self.waiting < self.node.buffer_size  # a buffer that is full would stay so

    def run(self) -> Iterator[Any]:
        size, limit = self.node.group_size, self.node.buffer_size
        for item in self.source.items():
            key = checked_key(self.key_fn, item, "groupby")
            group = self.groups.setdefault(key, [])
            group.append(item)
            self.waiting += 1
            full = len(group) == size
            del item, group
            if full:
                yield self._taken(key)
            elif self.waiting >= limit:
                largest = max(self.groups, key=lambda key: len(self.groups[key]))
                if self._may_go(largest):
                    yield self._taken(largest)
        while self.groups:
            yield self._taken(next(iter(self.groups)))

    def _may_go(self, key: Hashable) -> bool:
        least, found = self.node.guaranteed_group_size, self.groups[key]
        if least is None or len(found) >= least:
            return True
        if not self.node.drop_remaining:
            raise RuntimeError(
                f"Failed to group items: {self.waiting} are waiting, as many as buffer_size allows, and the largest "
                f"group, of key {key!r}, has {len(found)} of the {least} that are guaranteed. Raise buffer_size, lower "
                "guaranteed_group_size or pass drop_remaining=True"
            )
        self._taken(key)
        return False

    def _taken(self, key: Hashable) -> Any:
        items = self.groups.pop(key)
        self.waiting -= len(items)
        return (key, DataChunk(items)) if self.node.keep_key else DataChunk(items)


@functional_datapipe("groupby")
class Grouper(OneInput[Any]):
    """Gathers the items that have one key, as ``group_key_fn`` tells it, into lists; with ``keep_key`` into pairs
    (key, list). A key that is numpy's, or a tensor of no dimension, becomes Python's.

    A group is handed out when it has ``group_size`` items. When ``buffer_size`` items are waiting, the largest group is
    handed out if it has ``guaranteed_group_size`` items (by default ``group_size``; any number if neither is given); a
    smaller one is dropped with ``drop_remaining``, and else an error. What is left at the end comes group by group, in
    the order in which they began.

    State: the groups that are waiting, with their keys; that of ``group_key_fn`` if it has any.

    Raises: ValueError for sizes that do not fit each other; while iterating, RuntimeError if a group is too small when
    the buffer is full.
    """

    iterator = _GroupIterator

    def __init__(
        self,
        datapipe: IterDataPipe[T],
        group_key_fn: Callable[[T], Hashable],
        *,
        keep_key: bool = False,
        buffer_size: int = 10000,
        group_size: int | None = None,
        guaranteed_group_size: int | None = None,
        drop_remaining: bool = False,
    ) -> None:
        super().__init__(datapipe)
        check_columns("group_key_fn", group_key_fn, None)
        self.group_key_fn: Callable[[Any], Hashable] = group_key_fn
        self.keep_key = keep_key
        self.buffer_size = check_count("buffer_size", buffer_size, at_least=1)
        if group_size is not None:
            group_size = check_count("group_size", group_size, at_least=1, at_most=buffer_size)
        self.group_size = group_size
        if guaranteed_group_size is not None:
            if group_size is None:
                raise ValueError(f"guaranteed_group_size={guaranteed_group_size} needs a group_size")
            guaranteed_group_size = check_count(
                "guaranteed_group_size", guaranteed_group_size, at_least=1, at_most=group_size
            )
        self.guaranteed_group_size = group_size if guaranteed_group_size is None else guaranteed_group_size
        self.drop_remaining = drop_remaining
