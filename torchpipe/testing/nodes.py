"""``check_node``: does a node keep the laws? For torchpipe's nodes and anybody's. Runs in the test's process."""

from __future__ import annotations

import pickle
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch

from torchpipe.errors import ReplayWarning, StateError, UnsafeStateError
from torchpipe.iter.running import Prefetcher
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.graph_pass import GraphPass
from torchpipe.node.host import Host
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import divides, node_name, walk
from torchpipe.randomness.global_random import GlobalRandom
from torchpipe.state import decode, encode
from torchpipe.state.pickling import dumps
from torchpipe.testing.compare import Frozen, freeze, value_of
from torchpipe.testing.fakes import CountingSource

__all__ = ["check_node"]

_MOST_AT_ONCE = 20  # items that are held before the first is looked at
_LONG = 60  # items of a stream over which a state might grow


def check_node(
    factory: Callable[[], IterDataPipe[Any]],
    *,
    pulls: Callable[[int], int] | None = None,
    opaque: bool = False,
    global_random: bool = False,
    epochs: Sequence[int] = (0, 1),
    num_shards: int = 2,
    limit: int = 200,
    positions: int = 40,
    grows: bool = False,
) -> None:
    """Check that the node which ``factory`` makes keeps the contract of :class:`~torchpipe.NodeIterator`.

    ``factory()`` returns a fresh graph, sources included, that ends in the node under test; every call must describe
    the same stream. A test for a node of your own is one line::

        check_node(lambda: MyNode(CountingSource(range(20)), window=3), pulls=lambda k: k + 2)

    Checked, for each of ``epochs`` unsharded and for each shard of ``num_shards``: equal passes are equal and do not
    disturb each other, whatever the global random states are; a state taken at every position (``positions`` of them if
    there are more), also at the end, and encoded, continues bit for bit in a fresh graph, again when saved straight
    after loading, and again when loaded twice; taking a state disturbs nothing and the state stays as it was when the
    pass goes on; a thread that runs ahead of the node (``prefetch``) changes none of this; nothing is pulled early;
    closing is idempotent, final and reaches the inputs; the node pickles, stays unchanged, and its length is true; the
    shards of a sharding point are together the whole stream; items that were handed out, and items that a node keeps,
    stay as they are (the strict mode is on); what ``saved`` names does not grow over a stream of 60 items or more, and
    a pass changes nothing that its class holds.

    ``pulls(k)``: how many items of each :class:`CountingSource` in the graph the first k items may pull (default: k).
    ``opaque``: states may hold items that need pickle. ``global_random``: the functions in the graph draw from the
    global random states, which are then saved and restored as a shard's are. ``limit``: look at so many items of the
    stream, for endless ones. ``grows``: the state may grow with the position, as that of a large buffer that fills.

    Raises: AssertionError that says what broke, where, and what was expected.
    """
    check = _Check(factory, pulls or (lambda k: k), opaque, global_random, limit, positions, grows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReplayWarning)
        warnings.filterwarnings("ignore", message=".*changes its own attributes when it is called")
        check.single_node()
        for epoch in epochs:
            check.stream(_Where(epoch, 0, 1))
        for shard in range(num_shards) if num_shards > 1 else ():
            check.stream(_Where(epochs[0], shard, num_shards))
        check.running_ahead(_Where(epochs[0], 0, 1))
        check.shards_together(epochs[0], num_shards)


@dataclass(frozen=True)
class _Where:
    epoch: int
    shard: int
    num_shards: int

    def __str__(self) -> str:
        return f"epoch {self.epoch}, shard {self.shard} of {self.num_shards}"


@dataclass
class _Pass:
    """A pass under its own global random states; items are taken down as they come."""

    iterator: NodeIterator[Any]
    random: GlobalRandom

    @property
    def shared(self) -> GraphPass:
        return self.iterator.context.shared

    def take(self, count: int) -> list[Frozen]:
        """Up to ``count`` items."""
        items: list[Frozen] = []
        with self.random:
            while len(items) < count:
                try:
                    items.append(freeze(next(self.iterator)))
                except StopIteration:
                    break
        return items


@dataclass
class _Saved:
    position: int
    state: dict[str, Any]
    data: bytes
    random: dict[str, Any] | None
    before: dict[int, Any]  # the random states of what stands before sharding points


@dataclass
class _Check:
    factory: Callable[[], IterDataPipe[Any]]
    pulls: Callable[[int], int]
    opaque: bool
    global_random: bool
    limit: int
    positions: int
    grows: bool
    passes: int = field(default=0)

    def open(
        self, where: _Where, node: IterDataPipe[Any] | None = None, saved: _Saved | None = None, *, threads: bool = True
    ) -> _Pass:
        """A new pass; other global random states each time, unless the functions are to see the same."""
        self.passes += 1
        key = (0, where.epoch, where.shard) if self.global_random else (1, self.passes)
        random = GlobalRandom(key)
        node = self.factory() if node is None else node
        with random:
            context = Context.for_graph(
                node,
                seed=1234,
                epoch=where.epoch,
                shard=where.shard,
                num_shards=where.num_shards,
                host=Host(threads=threads, allow_pickle=self.opaque, strict=True),
            )
            iterator = context.iterate(node)
        opened = _Pass(iterator, random)
        if saved is not None:
            self.load(opened, decode(saved.data, allow_pickle=self.opaque), saved)
        return opened

    def load(self, opened: _Pass, state: dict[str, Any], saved: _Saved) -> None:
        with opened.random:
            opened.iterator.load_state_dict(state)
        opened.shared.random.load(saved.before)
        if self.global_random:
            opened.random.load_state_dict(saved.random)

    def save(self, opened: _Pass, position: int, where: _Where) -> _Saved:
        with opened.random:
            state = opened.iterator.state_dict()
        data = encode(state)
        try:
            decode(data, allow_pickle=self.opaque)
        except UnsafeStateError as error:
            raise AssertionError(
                f"{self.name} at item {position} ({where}): its state is not plain data. {error} "
                "(or check with opaque=True if that is meant)"
            ) from None
        random = opened.random.state_dict() if self.global_random else None
        return _Saved(position, state, data, random, opened.shared.random.state())

    @property
    def name(self) -> str:
        return node_name(self.factory())

    def equal(self, got: list[Frozen], expected: list[Frozen], where: _Where, what: str) -> None:
        for index, (one, other) in enumerate(zip(got, expected)):
            assert one == other, f"{self.name}, {where}: {what} gave {one} as item {index}, not {other}"
        assert len(got) == len(expected), (
            f"{self.name}, {where}: {what} gave {len(got)} items, not {len(expected)}; "
            f"{'the next would be' if len(got) < len(expected) else 'too much:'} "
            f"{(expected if len(got) < len(expected) else got)[min(len(got), len(expected))]}"
        )

    # --- what is checked ---

    def stream(self, where: _Where) -> None:
        expected = self.reference(where)
        self.equal(self.open(where).take(self.limit), expected, where, "a second pass over a fresh graph")
        self.two_at_a_time(where, expected)
        self.growth(where, len(expected))
        self.independent_passes(where, expected)
        self.laziness(where, len(expected))
        self.resuming(where, expected)

    def reference(self, where: _Where) -> list[Frozen]:
        """The items of a pass; what its classes hold has to stay as it was."""
        opened = self.open(where)
        kinds = {kind for iterator in _iterators(opened.iterator) for kind in type(iterator).__mro__}
        before = {(kind, name): value_of(value) for kind in kinds for name, value in _mutable(kind)}
        items = opened.take(self.limit)
        for kind in kinds:
            for name, value in _mutable(kind):
                assert value_of(value) == before.get((kind, name)), (
                    f"{self.name}, {where}: a pass changed {kind.__name__}.{name}, which belongs to the class, so that "
                    f"all passes share it. Name it in saved, or make it in __init__()"
                )
        return items

    def two_at_a_time(self, where: _Where, expected: list[Frozen]) -> None:
        """An item is the consumer's: it stays as it is while the next one is made."""
        opened = self.open(where)
        with opened.random:
            held = list(islice(opened.iterator, min(len(expected), _MOST_AT_ONCE)))
        for index, item in enumerate(held):
            if not _has_stream(item):
                got = freeze(item)
                assert got == expected[index], (
                    f"{self.name}, {where}: item {index} was {expected[index]} when it came, and is {got} once others "
                    "have come. Does the node hand out a list or an array that it goes on changing? Hand out a copy"
                )

    def growth(self, where: _Where, length: int) -> None:
        """Check that the values which a node's author names in ``saved`` do not grow with the position."""
        if self.grows or length < _LONG:
            return
        opened, sizes = self.open(where), list[int]()
        iterator = opened.iterator
        for count in (0, *[length // 4] * 4):
            opened.take(count)
            own = iterator.get_state()
            sizes.append(len(encode({name: own[name] for name in iterator.saved if name in own})))
        grown = [size - sizes[0] for size in sizes]
        assert not 0 < grown[1] < grown[2] < grown[3] < grown[4] > 3 * grown[1], (
            f"{self.name}, {where}: what it saves grows with the position, by {grown} bytes after each quarter of "
            f"{length} items, in {', '.join(iterator.saved)}. Keep what the next items need alone (or check with "
            "grows=True, if it is a buffer that has not been full yet)"
        )

    def independent_passes(self, where: _Where, expected: list[Frozen]) -> None:
        node = self.factory()
        with _unchanged(node, self.name):
            self.equal(self.open(where, node).take(self.limit), expected, where, "the first pass over a node")
            one, other = self.open(where, node), self.open(where, node)
            items: list[Frozen] = []
            others: list[Frozen] = []
            for _ in range(len(expected)):
                items += one.take(1)
                others += other.take(1)
            self.equal(items, expected, where, "a pass, while another over the same node went on beside it,")
            self.equal(others, expected, where, "a pass, while another over the same node went on beside it,")

    def laziness(self, where: _Where, length: int) -> None:
        node = self.factory()
        sources = [item.pulls for item in walk(node) if isinstance(item, CountingSource)]
        opened = self.open(where, node)
        for count in range(length + 1):
            if count:
                opened.take(1)
            allowed = self.pulls(count) if count else 0
            opened.iterator.state_dict()
            for pulls in sources:
                assert pulls.total <= allowed, (
                    f"{self.name}, {where}: {pulls.total} items of a source were pulled for {count} items, "
                    f"{allowed} are allowed. Pull an item when it is needed, not before (or say pulls=...)"
                )

    def resuming(self, where: _Where, expected: list[Frozen]) -> None:
        walking = self.open(where)
        ended = len(expected) < self.limit
        kept: list[_Saved] = []
        got: list[Frozen] = []
        for position in _sample(len(expected), self.positions):
            got += walking.take(position - len(got))
            kept.append(self.save(walking, position, where))
        if ended:
            self.equal(walking.take(1), [], where, "a pass over its end")
            kept.append(self.save(walking, len(expected), where))
        self.equal(got, expected, where, "a pass whose state was saved again and again")
        for saved in kept:
            self.continuation(saved, expected, where)
        for saved in kept:
            assert encode(saved.state) == saved.data, (
                f"{self.name}, {where}: the state saved at item {saved.position} changed while the pass went on. "
                "get_state() must return copies of lists and dicts that change later"
            )

    def continuation(self, saved: _Saved, expected: list[Frozen], where: _Where) -> None:
        rest = expected[saved.position :]
        at = f"saved at item {saved.position}"
        opened = self.open(where, saved=saved)
        again = self.save(opened, saved.position, where)
        self.equal(opened.take(len(rest)), rest, where, f"a pass {at} and loaded")
        if len(expected) < self.limit:
            self.equal(opened.take(1), [], where, f"a pass {at} and loaded, at its end,")
        self.equal(
            self.open(where, saved=again).take(len(rest)), rest, where, f"a pass {at}, loaded, saved at once and loaded"
        )
        state = decode(saved.data, allow_pickle=self.opaque)
        for time in ("first", "second"):
            opened = self.open(where)
            self.load(opened, state, saved)
            self.equal(
                opened.take(len(rest)), rest, where, f"the {time} of two passes that loaded the same state, {at},"
            )

    def running_ahead(self, where: _Where) -> None:
        """A stage that runs ahead keeps states of the node, or what gives them later: these are states of the node.

        Without its thread, in which random numbers that functions draw would not be the pass's.
        """
        expected = self.open(where).take(self.limit)
        walking = self.open(where, Prefetcher(self.factory(), 2), threads=False)
        for position in range(min(len(expected), self.positions) + 1):
            saved = self.save(walking, position, where)
            resumed = self.open(where, saved=saved, threads=False)
            at = f"a pass saved at item {position} with prefetch(2) behind the node, and loaded without"
            following = expected[position : position + 3]
            self.equal(resumed.take(len(following)), following, where, at)
            resumed.iterator.close()
            walking.take(1)
        walking.iterator.close()

    def shards_together(self, epoch: int, num_shards: int) -> None:
        if not divides(self.factory()):
            return
        whole = self.open(_Where(epoch, 0, 1)).take(self.limit)
        parts = [self.open(_Where(epoch, shard, num_shards)).take(self.limit) for shard in range(num_shards)]
        given = Counter(map(repr, whole))
        given.subtract(repr(item) for part in parts for item in part)
        wrong = [f"{text} {-count:+d}" for text, count in given.items() if count]
        assert not wrong or max(map(len, [whole, *parts])) == self.limit, (
            f"{self.name} is a sharding point, but {num_shards} shards together do not give each item once: "
            f"{', '.join(wrong[:5])}. Keep one shard's part of the input: context.share() says which"
        )

    def single_node(self) -> None:
        where = _Where(0, 0, 1)
        expected = self.reference(where)
        self.closing(where, min(len(expected), 1))
        self.equal(
            self.open(where, _pickled(self.factory(), self.name)).take(self.limit), expected, where, "a pickled copy"
        )
        try:
            length = len(self.factory())
        except TypeError:
            length = len(expected)
        if len(expected) < self.limit:
            assert length == len(expected), f"{self.name}: len() says {length}, but there are {len(expected)} items"
        opened = self.open(where)
        state = self.save(opened, 0, where).state
        if opened.take(1):
            try:
                opened.iterator.load_state_dict(state)
            except StateError:
                return
            raise AssertionError(f"{self.name} loaded a state after its first item, instead of raising StateError")

    def closing(self, where: _Where, count: int) -> None:
        for taken in {0, count}:
            node = self.factory()
            opened = self.open(where, node)
            opened.take(taken)
            opened.iterator.close()
            opened.iterator.close()
            assert not opened.take(1), f"{self.name} gave an item after close() (after item {taken})"
            for item in walk(node):
                if isinstance(item, CountingSource):
                    assert item.pulls.open_passes == 0, f"{self.name}.close() left its input open (after item {taken})"


def _iterators(iterator: NodeIterator[Any]) -> Iterator[NodeIterator[Any]]:
    yield iterator
    for item in iterator.inputs:
        yield from _iterators(item)


def _mutable(kind: type) -> list[tuple[str, Any]]:
    """The values of a class that could be changed in place."""
    kinds = (list, dict, set, deque, np.ndarray, torch.Tensor)
    return [(name, value) for name, value in vars(kind).items() if isinstance(value, kinds)]


def _has_stream(item: Any) -> bool:
    """True if an open file is in it, which may end with the next item."""
    if isinstance(item, list | tuple):
        return any(map(_has_stream, item))
    if isinstance(item, dict):
        return any(map(_has_stream, item.values()))
    return callable(getattr(item, "read", None))


def _sample(length: int, count: int) -> list[int]:
    """``count`` positions from 0 to ``length``, evenly, both ends included; all of them if there are no more."""
    if length < count:
        return list(range(length + 1))
    return sorted({round(index * length / (count - 1)) for index in range(count)})


def _pickled(node: IterDataPipe[Any], name: str) -> IterDataPipe[Any]:
    try:
        return pickle.loads(dumps(node))  # type: ignore[no-any-return]
    except Exception as error:
        raise AssertionError(f"{name} cannot be pickled, so no worker could run it: {error!r}") from error


@contextmanager
def _unchanged(node: IterDataPipe[Any], name: str) -> Iterator[None]:
    """Fails if an attribute of a node in the graph changes meanwhile."""
    nodes = walk(node)
    before = [_attributes(item) for item in nodes]
    yield
    for item, old in zip(nodes, before):
        new = _attributes(item)
        changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        assert not changed, (
            f"{name}: iterating changed {', '.join(changed)} of {node_name(item)}. A node is a description: keep what "
            "changes in its iterator"
        )


def _attributes(node: Any) -> dict[str, Any]:
    return {key: _content(value) for key, value in vars(node).items()}


def _content(value: Any) -> Any:
    """Plain data by value, containers by their content, all else (nodes, functions) by identity."""
    if isinstance(value, list | tuple):
        return [_content(item) for item in value]
    if isinstance(value, dict):
        return [(_content(key), _content(item)) for key, item in value.items()]
    return freeze(value) if isinstance(value, str | bytes | bytearray | int | float) else id(value)
