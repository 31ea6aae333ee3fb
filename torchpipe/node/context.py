"""The iteration context: everything that one pass over a graph depends on, passed down from node to node.

Runs in every process that executes a part of a graph. There are no globals and no node is changed: two passes over one
graph have a context each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import Any, Protocol, TypeAlias

from torchpipe.errors import GraphError
from torchpipe.node.announce import warn_user
from torchpipe.node.iterator import NodeIterator, refuse_taken_attributes
from torchpipe.node.ownership import Keeper, is_strict
from torchpipe.node.private import for_pass
from torchpipe.node.replay import BoundInput, ReplayIterator
from torchpipe.node.retries import Retries
from torchpipe.node.tolerance import Failures
from torchpipe.node.torchs_loaders import by_torch
from torchpipe.node.traits import (
    DataPipe,
    Division,
    check_single_division,
    divides,
    division,
    inputs_of,
    node_name,
    pairs,
    reads,
    traits_of,
    walk,
)
from torchpipe.node.users_code import node_runs_users_code
from torchpipe.randomness.global_random import GlobalRandom
from torchpipe.randomness.seeds import StreamKey, derive_seed, fresh_seed
from torchpipe.state import LeftOut, SnapshotPolicy

__all__ = ["Context", "GraphIndex", "Host", "Memory", "Replayed", "SharedByPass", "Trace"]

_ALIKE = 0xBEF0  # keeps the random states before sharding points apart from those of shards

# What gives an array of so many bytes to make a large item in, from where it travels without a copy; None if there is
# no such place just now.
Memory: TypeAlias = Callable[[int], Any]


class Trace(Protocol):
    """Notes which node is at work: for naming it after a crash, or for what it takes."""

    def watch(self, stream: Any, node_id: int) -> Any:
        """``stream``, with ``node_id`` noted while it is being pulled."""

    def plain(self, stream: Any) -> Any:
        """The stream to pull instead of ``stream``, which :meth:`watch` gave, from the next item on."""

    def left_out(self, node_id: int) -> None:
        """The node has left out an item, since making it raised."""


class _Renumbered:
    """``trace``, for nodes that have other numbers in it."""

    def __init__(self, trace: Trace, numbers: Mapping[int, int]) -> None:
        self._trace, self._numbers = trace, numbers
        self.plain = trace.plain

    def watch(self, stream: Any, node_id: int) -> Any:
        return self._trace.watch(stream, self._numbers[node_id]) if node_id in self._numbers else stream

    def left_out(self, node_id: int) -> None:
        if node_id in self._numbers:
            self._trace.left_out(self._numbers[node_id])


class Replayed(Protocol):
    """A part of a pass that may have to be run again from its start to resume."""

    @property
    def node(self) -> DataPipe: ...

    @property
    def replayed(self) -> bool:
        """True if it has no state: what it drew from global random states is known by a replay alone."""

    def to_replay(self) -> tuple[str, int]:
        """Its name, and the number of items that would be made again to resume here."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """The environment of a pass, from its runner.

    ``threads`` says whether nodes may run ahead in threads of their own; ``allow_pickle`` whether states being loaded
    may hold pickles; ``announces`` whether iterators say what they replay. ``memory``, if there is one, is where large
    items are best made; ``supply`` is where dispatched items come from; ``policy`` says when snapshots are due.
    ``on_left_out`` is told of each item that is left out and noted, ``on_again`` of each that is made again to be
    dropped, ``warn`` of what the user is to know. ``encodes``: each state is encoded before anything
    else happens. ``strict``: items that nodes keep are looked after.
    """

    threads: bool = True
    allow_pickle: bool = False
    announces: bool = True
    trace: Trace | None = None
    memory: Memory | None = None
    supply: Any = None
    encodes: bool = False
    strict: bool = field(default_factory=is_strict)
    policy: Callable[[], SnapshotPolicy] = SnapshotPolicy
    on_left_out: Callable[[LeftOut], None] | None = None
    on_again: Callable[[], None] | None = None
    warn: Callable[..., None] = warn_user


@dataclass(frozen=True)
class GraphIndex:
    """The nodes of a graph by their ids: their positions, which are the same in every process, and what divides the
    stream up to each.
    """

    roots: tuple[DataPipe, ...]
    nodes: tuple[DataPipe, ...]  # inputs first; kept, so that their ids stay theirs
    numbers: Mapping[int, int]
    divided: Mapping[int, Division]
    copies: Mapping[int, DataPipe] = field(default_factory=dict)  # id of a pass's copy -> the node
    _drawing_alike: list[Mapping[int, Division]] = field(default_factory=list)  # once it has been asked for

    @classmethod
    def of(cls, *roots: DataPipe) -> GraphIndex:
        """The index of the graph that ends in ``roots``."""
        nodes = tuple({id(node): node for root in roots for node in walk(root)}.values())
        numbers: dict[int, int] = {}
        divided: dict[int, Division] = {}
        for node in nodes:
            # Nodes that only move items in time or place have no number: with or without them, the streams stay.
            if traits_of(node).alters_stream:
                numbers[id(node)] = len(numbers)
            among = division(node)
            for item in inputs_of(node):
                among |= divided.get(id(item), Division.NONE)
            if among:
                divided[id(node)] = among
        return cls(roots, nodes, numbers, divided)

    def with_copy(self, copied: DataPipe, node: DataPipe) -> GraphIndex:
        """The same, where ``copied`` has the place of ``node``: questions about either have one answer."""
        added = {id(copied): self.original(node)}
        numbers, divided = dict(self.numbers), dict(self.divided)
        numbers[id(copied)] = self.numbers.get(id(node), -1)
        divided[id(copied)] = self.division(node)
        return replace(self, numbers=numbers, divided=divided, copies={**self.copies, **added})

    def original(self, node: DataPipe) -> DataPipe:
        """The node of the graph whose position ``node`` has: itself, or what it is a pass's copy of."""
        return self.copies.get(id(node), node)

    def division(self, node: DataPipe) -> Division:
        """Among whom the stream is divided at ``node``, and before it."""
        return self.divided.get(id(node), Division.NONE)

    @property
    def drawing_alike(self) -> Mapping[int, Division]:
        """The division done already at the nodes that run code of the user's before a sharding point, by id.
        A stream that a sharding point hands on one to one has been divided elsewhere, and is not before it.
        """
        if not self._drawing_alike:
            self._drawing_alike.append(self._find_drawing_alike())
        return self._drawing_alike[0]

    def _find_drawing_alike(self) -> dict[int, Division]:
        whole = reduce(or_, map(self.division, self.roots), Division.NONE)
        elsewhere, found = set[int](), dict[int, Division]()
        for node in reversed(self.nodes):
            level = self.division(node)
            if id(node) in elsewhere or (divides(node) and traits_of(node).one_to_one):
                elsewhere.update(map(id, inputs_of(node)))
            elif level != whole and id(node) in self.numbers and node_runs_users_code(node):
                found[id(node)] = level
        return found

    def reads(self, node: DataPipe) -> int:
        """The number of passes over ``node`` that begin in a pass over the graph, as far as that tells."""
        return reads(*self.roots).get(id(self.original(node)), 0)

    def reads_separately(self, node: DataPipe) -> bool:
        """True if ``node`` reads some branches of a shared pass, of which the graph reads others elsewhere."""
        below = {id(item): item for item in walk(self.original(node))}
        shared = {key for key, item in below.items() if traits_of(item).shared}
        others = (item for item in self.nodes if id(item) not in below) if shared else ()
        return any(id(item) in shared for other in others for item in inputs_of(other))


@dataclass(eq=False)
class SharedByPass:
    """The data that the iterators of one pass share."""

    assumed: Mapping[int, Any] = field(
        default_factory=dict
    )  # node_id -> assumption(), of what is replayed from its start
    replays: list[Replayed] = field(default_factory=list)
    restoring: list[object] = field(default_factory=list)  # not empty while items are made again
    noting: int = 0  # above 0 while a state is taken that is kept as it is while the pass goes on
    keepers: list[Keeper] = field(default_factory=list)  # in strict mode
    lent: bool = False  # has one been taken? Then items that it holds are handed out as copies
    skipping: set[str] = field(default_factory=set)  # the nodes that have left something out, by their names
    random: dict[int, GlobalRandom] = field(default_factory=dict)  # of nodes before sharding points, by their numbers
    random_loaded: dict[int, Any] = field(default_factory=dict)  # of such nodes that have not begun yet
    passes: dict[Any, Any] = field(default_factory=dict)  # those that several iterators read, of whoever shares them
    _gathered: dict[int, dict[Any, set[int]]] = field(default_factory=dict)  # thread -> whom it asked for a state
    _loading: dict[int, list[Callable[[], object]]] = field(default_factory=dict)  # thread -> what follows its load

    @contextmanager
    def loading(self) -> Iterator[list[Callable[[], object]]]:
        """Meanwhile, this thread loads states of several iterators. What is in the list is called when all have theirs:
        to pull from one of them may start what they share, the shards of all branches say, where each stands then.
        """
        thread = threading.get_ident()
        if thread in self._loading:
            yield self._loading[thread]
            return
        following = self._loading[thread] = []
        try:
            yield following
        finally:
            del self._loading[thread]
        for call in following:
            call()

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Meanwhile, this thread takes one state of several iterators, at one moment: what they share is in it once."""
        thread = threading.get_ident()
        if thread in self._gathered:
            yield
            return
        gathered = self._gathered[thread] = {}
        try:
            yield
        finally:
            del self._gathered[thread]
        for shared, readers in gathered.items():
            shared.gathered(readers)

    @contextmanager
    def lending(self) -> Iterator[None]:
        """Meanwhile, a state is taken that holds the items of buffers themselves: whoever keeps some hands out copies
        from now on. So a state for each item does not cost a copy of all buffers.
        """
        self.noting += 1
        self.lent = True
        try:
            yield
        finally:
            self.noting -= 1

    def gather(self, shared: Any, reader: int) -> bool:
        """``reader`` of the pass ``shared`` is asked for its state: is that of ``shared`` gathered already?"""
        gathered = self._gathered.get(threading.get_ident())
        if gathered is None:
            return False
        before = shared in gathered
        gathered.setdefault(shared, set()).add(reader)
        return before

    def random_of(self, number: int, key: StreamKey) -> GlobalRandom:
        """The global random states of a node before a sharding point, which begin by ``key``."""
        if number not in self.random:
            self.random[number] = GlobalRandom(key)
            if number in self.random_loaded:
                self.random[number].load_state_dict(self.random_loaded.pop(number))
        return self.random[number]

    def random_now(self) -> dict[int, Any]:
        """Plain data: the global random states of nodes before sharding points; None where nothing was drawn. Without
        those of nodes that are at work: theirs are in place.
        """
        waiting = {number: random for number, random in self.random.items() if not random.entered}
        return self.random_loaded | {number: random.state_dict() for number, random in waiting.items()}

    def load_random(self, states: Mapping[int, Any]) -> None:
        """Put back what :meth:`random_now` gave. Raises: what code raises over what it cannot have given."""
        for number, random in self.random.items():
            if not random.entered:
                random.load_state_dict(states.get(number))
        self.random_loaded = {number: state for number, state in states.items() if number not in self.random}

    @contextmanager
    def random_as(self, states: Mapping[int, Any]) -> Iterator[None]:
        """Meanwhile, nodes before sharding points draw as from ``states``; then as if that had not been."""
        present = self.random_now()
        self.load_random(states)
        try:
            yield
        finally:
            self.load_random(present)

    def torn(self) -> str:
        """The name of a shared pass whose readers' states, in the state taken last, are of different moments; or ""."""
        return next((name for item in self.passes.values() if (name := item.torn())), "")


@dataclass(frozen=True, kw_only=True)
class Context:
    """The values on which a pass over a graph depends. Make one with :meth:`for_graph`.

    ``seed``, ``epoch``, ``shard`` and ``num_shards`` fix the stream. With several ranks, ``shard`` counts those of all:
    number ``rank`` and every ``world_size``-th after it belong to one rank.
    """

    seed: int
    epoch: int = 0
    shard: int = 0
    num_shards: int = 1
    rank: int = 0
    world_size: int = 1
    section: int = 0  # 0: inside a shard, 1: after the merge of shards, 2: before they are dealt their items
    rounds: tuple[int, ...] = ()
    graph: GraphIndex
    host: Host = field(default_factory=Host)
    shared: SharedByPass = field(default_factory=SharedByPass)
    substitutes: Mapping[int, Callable[[Context], NodeIterator[Any]]] = field(default_factory=dict)
    failures: Failures | None = None  # what is left out where an item fails; of the nodes before an on_error()
    retries: Retries | None = None  # of users' functions, of the nodes before a retry()
    before: Division = Division.NONE  # among whom the stream is divided outside of this graph
    asks_nodes: bool = False  # True for a pass that ``iter(node)`` begins: what torch's loaders have told nodes counts
    divided_by_torch: bool = False  # True if torch's loader has told the sharding points which part is theirs
    lends: bool = False  # True if nodes behind may take states that hold the items of buffers themselves

    @classmethod
    def for_graph(cls, *roots: DataPipe, seed: int | None = None, **options: Any) -> Context:
        """The context for a pass over the graph that ends in ``roots``. Without a seed, torch's generator gives one, or
        the loader of torch's that runs the graph.
        """
        graph = GraphIndex.of(*roots)
        if seed is None:
            bound = next((node for node in graph.nodes if isinstance(node, BoundInput)), None)
            if bound is not None:  # a graph made inside a user's __iter__: it belongs to the outer pass
                outer = bound.context
                return cls(
                    seed=derive_seed(*outer.stream_key(bound.owner)),
                    shard=outer.shard,
                    num_shards=outer.num_shards,
                    rank=outer.rank,
                    world_size=outer.world_size,
                    graph=graph,
                    host=Host(threads=outer.host.threads),
                )
            division = by_torch(graph.nodes)
            if division is not None:
                return cls(
                    seed=division.seed,
                    shard=division.part,
                    num_shards=division.parts,
                    divided_by_torch=True,
                    asks_nodes=True,
                    graph=graph,
                    **options,
                )
            return cls(seed=fresh_seed(), asks_nodes=True, graph=graph, **options)
        return cls(seed=seed, graph=graph, **options)

    def inside(self, graph: GraphIndex, seed: int) -> Context:
        """The context for a graph that is made within this pass: of the same shard, with streams of its own."""
        return replace(
            self,
            seed=seed,
            rounds=(),
            graph=graph,
            host=replace(self.host, trace=self._trace_inside(graph), supply=None),
            shared=SharedByPass(),
            substitutes={},
        )

    def _trace_inside(self, graph: GraphIndex) -> Trace | None:
        """For nodes of this graph that a pass of their own runs; others' work is that of whoever has made them."""
        trace = self.host.trace
        numbers = {graph.numbers.get(id(node), -1): self.node_id(node) for node in graph.nodes}
        renumbered = {inner: outer for inner, outer in numbers.items() if inner >= 0 and outer >= 0}
        return None if trace is None or not renumbered else _Renumbered(trace, renumbered)

    def for_opened(self, owner: DataPipe, root: DataPipe, number: int) -> Context:
        """The context for the graph up to ``root``, which ``owner`` has made of item ``number`` of its input.

        Raises: GraphError if it divides the stream where it has been divided already.
        """
        graph, before = GraphIndex.of(root), self.before | self.graph.division(owner)
        check_single_division(graph.nodes, before, node_name(owner))
        inner = self.inside(graph, derive_seed(*self.stream_key(owner), number))
        # What it replays, this pass replays: it is in the state of this
        outer = self.shared
        shared = SharedByPass(replays=outer.replays, restoring=outer.restoring, skipping=outer.skipping)
        return replace(inner, before=before, shared=shared)

    @property
    def local_shard(self) -> int:
        """The shard's number within its rank."""
        return self.shard // self.world_size

    def iterate(self, node: DataPipe) -> NodeIterator[Any]:
        """A new iterator over ``node`` in this context.

        Raises: TypeError if the node is map-style or defines neither ``iterate`` nor ``__iter__``.
        """
        leaf = self.substitutes.get(id(node))
        if leaf is not None:
            return leaf(self)
        way = _way_to_iterate(node)
        private, context, functions = for_pass(node, self, is_torchs=way == "__iter__")
        iterator = ReplayIterator(private, context) if way == "__iter__" else private.iterate(context)
        if not isinstance(iterator, NodeIterator):
            raise TypeError(f"{node_name(node)}.iterate() must return a NodeIterator, got {iterator!r}")
        refuse_taken_attributes(iterator)
        iterator.pass_engine.functions += functions
        self.let_draw_alike(iterator, node)
        return iterator

    def let_draw_alike(self, iterator: NodeIterator[Any], node: DataPipe) -> None:
        """Let ``iterator``, a new pass over ``node``, draw what the same pass draws in the other shards, if each of
        them makes the same items.
        """
        if self.section == 0 and self.num_shards > 1:
            original = self.graph.original(node)
            level = self.graph.drawing_alike.get(id(original))
            if level is not None:
                which, number = self.share(level)[1] + 1 if level else 0, self.node_id(original)
                key = (self.seed, self.epoch, self.section, _ALIKE, which, number)
                iterator.pass_engine.random = self.shared.random_of(number, key)

    @property
    def warn_once(self) -> Callable[..., None] | None:
        """The function to call with a warning that is the same in all shards; None in all of them but one."""
        return self.host.warn if self.local_shard == 0 else None

    def for_inputs_of(self, node: DataPipe) -> Context:
        """That of the inputs of ``node``: where it pairs their items, what is left out is left out of all of them."""
        failures = self.failures
        if failures is None or not failures.skips or not pairs(node):
            return self
        return replace(self, failures=failures.of_branches())

    def for_round(self, number: int) -> Context:
        """The context of the ``number``-th pass over an input that is read several times within one epoch."""
        return replace(self, rounds=(*self.rounds, number))

    def share(self, among: Division) -> tuple[int, int]:
        """(parts, which one): what a sharding point that divides ``among`` these keeps in this pass."""
        if among is Division.RANKS:
            return self.world_size, self.rank
        if among is Division.SHARDS:
            return self.num_shards // self.world_size, self.local_shard
        return self.num_shards, self.shard

    @contextmanager
    def making_again(self) -> Iterator[None]:
        """Meanwhile, items are made that a state counts: to be dropped, or to go on within one."""
        self.shared.restoring.append(self)
        try:
            yield
        finally:
            self.shared.restoring.pop()

    def node_id(self, node: DataPipe) -> int:
        """The node's place in the graph, the same in every process; -1 for nodes that are not in it."""
        return self.graph.numbers.get(id(node), -1)

    def stream_key(self, node: DataPipe) -> StreamKey:
        """The key of ``node``'s random stream: by seed, epoch, shard (after a sharding point), node and round."""
        number = self.graph.numbers.get(id(node))
        if number is None:
            raise GraphError(f"{node_name(node)} is not part of the graph that this context was made for")
        among = self.graph.division(node)
        shard = self.share(among)[1] + 1 if among else 0
        return (self.seed, self.epoch, self.section, shard, number, *self.rounds)


def _way_to_iterate(node: DataPipe) -> str:
    """``iterate`` or ``__iter__``, whichever the class nearer to the node's own defines."""
    for cls in type(node).__mro__:
        for name in ("iterate", "__iter__"):
            if name in vars(cls):
                return name
    raise TypeError(f"{node_name(node)} is no iterable node: convert a map-style one with to_iter_datapipe()")
