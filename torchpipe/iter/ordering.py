"""The items of a shard, and their order.

- ``sharding_filter``: the point where a stream is divided among shards.
- ``sort`` and ``window_shuffle``: another order within windows of the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Self, TypeVar

from torchpipe.compat.torch_datapipes import SHARDING_PRIORITIES
from torchpipe.errors import StateError
from torchpipe.indexed.selecting import SelectingIterator
from torchpipe.iter._shared.bases import ItemIterator, OnePerItem
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.function_results import plain_key
from torchpipe.node.iterator import NodeIterator, stored_count, stored_items
from torchpipe.node.traits import callable_name, division
from torchpipe.node.validate import check_columns, check_count, check_input
from torchpipe.randomness.seeds import check_seed, permutation, stored_key

__all__ = ["SHARDING_PRIORITIES", "ShardingFilter", "ShardingRoundRobinDispatcher", "Sorter", "WindowShuffler"]

T = TypeVar("T")


@functional_datapipe("sharding_filter")
class ShardingFilter(IterDataPipe[T]):
    """Keeps the items of one shard: number ``shard``, ``shard + n``, ``shard + 2n`` ... of its input.

    Which shard of how many is told by the pass, so that the node needs no preparation. Everything before it runs in
    every shard: put it early, where items are cheap (file names, indices), but after ``shuffle``. It divides among all
    shards of all ranks; with ``SHARDING_PRIORITIES.DISTRIBUTED`` among the ranks alone, with ``MULTIPROCESSING`` among
    the shards of each rank: one of each may stand on one path.

    State: the number of items seen. ``len()`` counts the items of all shards together, until ``apply_sharding``.
    """

    divides = True
    selects = True
    seeded = False  # set_seed() is of all before it
    fingerprint_ignores = ("own_seed",)

    def __init__(
        self, source_datapipe: IterDataPipe[T], sharding_group_filter: SHARDING_PRIORITIES | None = None
    ) -> None:
        check_input("sharding_filter", source_datapipe)
        self.source = source_datapipe
        self.sharding_group_filter = sharding_group_filter
        self._groups: dict[int, tuple[int, int]] = {}
        self.own_seed: int | None = None

    def apply_sharding(
        self, num_of_instances: int, instance_id: int, sharding_group: SHARDING_PRIORITIES = SHARDING_PRIORITIES.DEFAULT
    ) -> None:
        """Say which part to keep, whatever a pass says. For torch's loaders, which call it; it changes the node.

        Parts of several groups are nested, DISTRIBUTED around MULTIPROCESSING. Raises: ValueError unless
        ``0 <= instance_id < num_of_instances``; RuntimeError if DEFAULT is mixed with other groups.
        """
        num_of_instances = check_count("num_of_instances", num_of_instances, at_least=1)
        instance_id = check_count("instance_id", instance_id, at_least=0)
        if instance_id >= num_of_instances:
            raise ValueError(f"instance_id must be below num_of_instances={num_of_instances}, got {instance_id}")
        default = SHARDING_PRIORITIES.DEFAULT
        if any((group == default) != (sharding_group == default) for group in self._groups):
            raise RuntimeError(
                f"sharding group {sharding_group!r} cannot join {sorted(self._groups)}: DEFAULT goes with no other"
            )
        self._groups[sharding_group] = (num_of_instances, instance_id)

    def set_seed(self, seed: int) -> Self:
        """Let passes that ``iter()`` begins have ``seed``. For torch's loaders, which tell one for each epoch, alike in
        all workers and ranks: so what is before this node is one stream. It changes the node.
        """
        self.own_seed = check_seed(seed)
        return self

    def applied(self) -> tuple[int, int] | None:
        """(parts, which one) from ``apply_sharding``, or None if it was not called (for the wanted group)."""
        wanted = self.sharding_group_filter
        groups = [group for group in self._groups if wanted is None or group == wanted]
        if not self._groups:
            return None
        parts, part = 1, 0
        for group in sorted(groups, reverse=True):
            count, index = self._groups[group]
            part += parts * index
            parts *= count
        return parts, part

    def __len__(self) -> int:
        parts, part = self.applied() or (1, 0)
        full, rest = divmod(len(self.source), parts)
        return full + (part < rest)

    def iterate(self, context: Context) -> NodeIterator[T]:
        parts, part = (self.applied() if context.asks_nodes else None) or context.share(division(self))
        return _ShardIterator(self, context, parts, part)


@functional_datapipe("sharding_round_robin_dispatch")
class ShardingRoundRobinDispatcher(ShardingFilter[T]):
    """Deals its input's items to the shards in turn; all before it runs only once, in a process of its own.

    For inputs that cannot be replicated, or are too costly to be read by every shard. Under a reading service with
    worker processes, a dispatcher process runs the input; in process it runs once for all shards. Of several in a
    graph, the first node after all of them is what is dealt. The items travel from the dispatcher to the workers, so
    dispatch what is small, and do the costly steps after it.

    State: how many items each shard has had, and snapshots of the input. Raises: ValueError for another
    ``sharding_group_filter`` than MULTIPROCESSING.
    """

    dispatches = True

    def __init__(
        self, source_datapipe: IterDataPipe[T], sharding_group_filter: SHARDING_PRIORITIES | None = None
    ) -> None:
        check_input("sharding_round_robin_dispatch", source_datapipe)
        if sharding_group_filter not in (None, SHARDING_PRIORITIES.MULTIPROCESSING):
            raise ValueError(
                "sharding_round_robin_dispatch deals items to worker processes: sharding_group_filter must be "
                f"SHARDING_PRIORITIES.MULTIPROCESSING, got {sharding_group_filter!r}"
            )
        super().__init__(source_datapipe, SHARDING_PRIORITIES.MULTIPROCESSING)


class _ShardIterator(SelectingIterator[T]):
    def __init__(self, node: ShardingFilter[T], context: Context, parts: int, part: int) -> None:
        self.parts = parts
        self.part = part
        self.seen = 0
        super().__init__(node, context, node.source, (parts, part))
        if self.strider is not None or self.positions is not None:
            self.source.draw_from_process()

    def lost(self, of_input: bool) -> int | None:
        if not of_input or self.strider is not None:
            return 1 if of_input else super().lost(of_input)
        self.seen += 1
        return int((self.seen - 1) % self.parts == self.part)

    def get_state(self) -> dict[str, Any]:
        return {"seen": self.seen if self.strider is None else self.strider.position}

    def set_state(self, state: dict[str, Any]) -> None:
        self.seen = stored_count(state, "seen")

    def choose(self) -> Iterator[Any]:
        return self._filtered() if self.strider is None else self.source.items()

    def _filtered(self) -> Iterator[Any]:
        parts, part = self.parts, self.part
        for item in self.source.items():
            index = self.seen
            self.seen = index + 1
            if index % parts == part:
                yield item


def _itself(item: Any) -> Any:
    return item


class _SortIterator(ItemIterator[T]):
    node: Sorter[T]
    keeps_items = True

    def __init__(self, node: Sorter[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.key_fn = self.with_retries(node.key_fn)
        self.left: list[T] = []  # the next one last
        self.window: list[tuple[Any, T]] = []  # that is being gathered, with keys
        self.sorted = 1  # items that are compared with each other

    def get_state(self) -> dict[str, Any]:
        return {"left": self.kept_items(self.left)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.left = stored_items(state, "left", at_most=self.node.window)

    def run(self) -> Iterator[T]:
        node, source = self.node, self.source.items()
        while True:
            while self.left:
                yield self.left.pop()
            for item in islice(source, node.window - len(self.window)):
                self.window.append((self._key(item), item))
            window, self.window = self.window, []
            self.sorted = len(window)
            window.sort(key=lambda entry: entry[0], reverse=node.reverse)
            self.sorted = 1
            self.left = [item for _, item in reversed(window)]
            if not self.left:
                return

    def _key(self, item: T) -> Any:
        key = plain_key(self.key_fn(item))
        if isinstance(key, float) and key != key:
            raise ValueError(
                f"{callable_name(self.node.key_fn)} gives NaN for {item!r:.200}, which stands nowhere in an order: "
                "filter such items out, or give them a number"
            )
        return key

    def items_in_hand(self, of_input: bool) -> int:
        return self.sorted

    def leave_out(self) -> bool:
        self.sorted = 1
        return True

    def close(self) -> None:
        super().close()
        self.left, self.window = [], []


@functional_datapipe("sort")
class Sorter(OnePerItem[T]):
    """Takes ``window`` items at a time and hands them out in the order of ``key_fn``; equal ones stay in order.

    Without ``key_fn`` the items themselves are compared. ``reverse`` is as in :func:`sorted`.

    State: what is left of the window.

    Raises: ValueError if ``window`` is below 1; TypeError if ``key_fn`` is no function; while iterating, ValueError for
    a key that is NaN.
    """

    iterator = _SortIterator

    def __init__(
        self, datapipe: IterDataPipe[T], window: int, key_fn: Callable[[T], Any] = _itself, *, reverse: bool = False
    ) -> None:
        super().__init__(datapipe)
        check_columns("key_fn", key_fn, None)
        self.window = check_count("window", window, at_least=1)
        self.key_fn: Callable[[Any], Any] = key_fn
        self.reverse = reverse


class _WindowIterator(SelectingIterator[T]):
    node: WindowShuffler[T]

    def __init__(self, node: WindowShuffler[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.key = context.stream_key(node)
        self.windows = 0
        self.left: list[Any] = []  # of items, or of positions; the next one last
        self._kept = "left" if self.positions is None else "places"

    def get_state(self) -> dict[str, Any]:
        return {"key": list(self.key), "windows": self.windows, self._kept: self.kept_items(self.left)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.key, self.windows = stored_key(state["key"]), stored_count(state, "windows")
        self.left = stored_items(state, self._kept, at_most=self.node.window)
        if self.positions is not None and not all(map(self.positions.holds, self.left)):
            raise StateError("the window in the state holds positions that are not in the data: is it the same?")

    def choose(self) -> Iterator[Any]:
        source = self.source.items()
        while True:
            while self.left:
                yield self.left.pop()
            window = list(islice(source, self.node.window))
            if not window:
                return
            order = permutation((*self.key, self.windows), len(window))
            self.windows += 1
            self.left = [window[index] for index in order]

    def close(self) -> None:
        super().close()
        self.left = []


@functional_datapipe("window_shuffle")
class WindowShuffler(OnePerItem[T]):
    """Takes ``window`` items at a time and hands them out in random order, every order having the same chance.

    An item stays within its window, so that batches of as many items hold what they would without it; ``shuffle`` mixes
    further. Of a source that is read by position the window holds positions, as with ``shuffle``.

    State: what is left of the window, a key and the number of the window.

    Raises: ValueError if ``window`` is below 1.
    """

    iterator = _WindowIterator
    seeded = True
    selects = True

    def __init__(self, datapipe: IterDataPipe[T], window: int) -> None:
        super().__init__(datapipe)
        self.window = check_count("window", window, at_least=1)
