"""The nodes of a graph as a pass knows them: their numbers, and what divides the stream up to each.

Runs in every process that executes a part of a graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_

from torchpipe.node.traits import DataPipe, Division, divides, division, inputs_of, reads, traits_of, walk
from torchpipe.node.user_code import node_runs_users_code

__all__ = ["GraphIndex"]


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
