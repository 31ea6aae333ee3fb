"""The iteration context: everything that one pass over a graph depends on, passed down from node to node.

Runs in every process that executes a part of a graph. There are no globals and no node is changed: two passes over one
graph have a context each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torchpipe.errors import GraphError
from torchpipe.node.graph_index import GraphIndex
from torchpipe.node.graph_pass import GraphPass
from torchpipe.node.host import Host, Renumbered, Trace
from torchpipe.node.iterator import NodeIterator, refuse_taken_attributes
from torchpipe.node.pass_copy import for_pass
from torchpipe.node.replay import BoundInput, ReplayIterator
from torchpipe.node.retries import Retries
from torchpipe.node.tolerance import Failures
from torchpipe.node.torch_loaders import by_torch
from torchpipe.node.traits import (
    DataPipe,
    Division,
    check_single_division,
    node_name,
    pairs,
)
from torchpipe.randomness.seeds import StreamKey, derive_seed, fresh_seed

__all__ = ["Context"]

_ALIKE = 0xBEF0  # keeps the random states before sharding points apart from those of shards


@dataclass(frozen=True, kw_only=True)
class Context:
    """The values on which a pass over a graph depends. Make one with :meth:`for_graph`.

    ``seed``, ``epoch``, ``shard`` and ``num_shards`` fix the stream. With several ranks, ``shard`` counts those of all:
    every ``world_size``-th belongs to one rank.
    """

    seed: int
    epoch: int = 0
    shard: int = 0
    num_shards: int = 1
    world_size: int = 1
    section: int = 0  # 0: inside a shard, 1: after the merge of shards, 2: before they are dealt their items
    rounds: tuple[int, ...] = ()
    graph: GraphIndex
    host: Host = field(default_factory=Host)
    shared: GraphPass = field(default_factory=GraphPass)
    substitutes: Mapping[int, Callable[[Context], NodeIterator[Any]]] = field(default_factory=dict)
    failures: Failures | None = None  # what is left out where an item fails; of the nodes before an on_error()
    retries: Retries | None = None  # of users' functions, of the nodes before a retry()
    before: Division = Division.NONE  # among whom the stream is divided outside of this graph
    asks_nodes: bool = False  # True for a pass that ``iter(node)`` begins: what torch's loaders have told nodes counts
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
                    world_size=outer.world_size,
                    graph=graph,
                    host=Host(threads=outer.host.threads),
                )
            told = by_torch(graph.nodes) or {"seed": fresh_seed()}
            return cls(asks_nodes=True, graph=graph, **options, **told)
        return cls(seed=seed, graph=graph, **options)

    def inside(self, graph: GraphIndex, seed: int) -> Context:
        """The context for a graph that is made within this pass: of the same shard, with streams of its own."""
        return replace(
            self,
            seed=seed,
            rounds=(),
            graph=graph,
            host=replace(self.host, trace=self._trace_inside(graph), supply=None),
            shared=GraphPass(),
            substitutes={},
        )

    def _trace_inside(self, graph: GraphIndex) -> Trace | None:
        """For nodes of this graph that a pass of their own runs; others' work is that of whoever has made them."""
        trace = self.host.trace
        numbers = {graph.numbers.get(id(node), -1): self.node_id(node) for node in graph.nodes}
        renumbered = {inner: outer for inner, outer in numbers.items() if inner >= 0 and outer >= 0}
        return None if trace is None or not renumbered else Renumbered(trace, renumbered)

    def for_opened(self, owner: DataPipe, root: DataPipe, number: int) -> Context:
        """The context for the graph up to ``root``, which ``owner`` has made of item ``number`` of its input.

        Raises: GraphError if it divides the stream where it has been divided already.
        """
        graph, before = GraphIndex.of(root), self.before | self.graph.division(owner)
        check_single_division(graph.nodes, before, node_name(owner))
        inner = self.inside(graph, derive_seed(*self.stream_key(owner), number))
        # What it replays, this pass replays: it is in the state of this
        outer = self.shared
        shared = GraphPass(replays=outer.replays, restoring=outer.restoring, skipping=outer.skipping)
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
                iterator.pass_engine.random = self.shared.random.of(number, key)

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
            return self.world_size, self.shard % self.world_size
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

    def make_again(self, stream: Iterator[Any], count: int, shorter: Callable[[int], Exception]) -> Any:
        """Pull ``count`` items of ``stream``, which a state counts, and forget them, but for the last one, which is
        returned. Raises: what ``shorter`` makes of their number if there are fewer.
        """
        last, on_again = None, self.host.on_again
        with self.making_again():
            for done in range(count):
                if (last := next(stream, self)) is self:
                    raise shorter(done)
                if on_again is not None:
                    on_again()
        return last

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
