"""The planner: a pure function from a graph to the sections that different processes run.

The *shard* section is everything up to the cuts, and runs once for each shard; the *main* section is what follows, and
runs once, in the consumer's process: nodes that must be there (``runs_in_main``, or ``is_replicable()`` says no) and
all that reads from them. Usually there is one cut; where a main node reads several branches, each that has a sharding
point ends in a cut of its own, and one that has none runs in the main section, once, as it stands. With
``sharding_round_robin_dispatch`` in the graph there is a *dispatch* section before the shards, which also runs once:
the first node after all dispatching ones, and what it reads from.

The number of items of an epoch, where the nodes know.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torchpipe.compat.torch_datapipes import TorchIterDataPipe, TorchMapDataPipe
from torchpipe.errors import GraphError
from torchpipe.graph.rewrite import replace_nodes, rewrite
from torchpipe.node.traits import (
    DataPipe,
    Division,
    check_single_division,
    divides,
    division,
    inputs_of,
    node_name,
    reads,
    runs_in_main,
    traits_of,
    walk,
    with_inputs,
)

__all__ = ["Plan", "plan", "total_length"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The sections of a graph. ``cuts`` are the last nodes of the shard section, one for each branch that the main
    section reads, in the order of the graph; ``root`` is the last node of all.

    ``dispatch`` is the last node of the dispatch section, or None if there is no such section; it is in branch
    ``dispatch_branch``.
    """

    root: DataPipe
    cuts: tuple[DataPipe, ...]
    dispatch: DataPipe | None
    dispatch_branch: int
    dispatch_nodes: tuple[DataPipe, ...]
    shard_nodes: tuple[DataPipe, ...]
    main_nodes: tuple[DataPipe, ...]
    sharding_points: tuple[DataPipe, ...]

    def check_num_shards(self, num_shards: int, world_size: int = 1) -> None:
        """Raises: GraphError if ``num_shards`` shards, or ``world_size`` ranks, would each yield every item."""
        for cut in self.cuts:
            divided = Division.NONE
            for node in walk(cut):
                divided |= division(node)
            for count, what, among in _parts(num_shards, world_size):
                if among not in divided:
                    sources = [node_name(node) for node in walk(cut) if not inputs_of(node)]
                    point = "sharding point" if not divided else f"sharding point for {what}"
                    where = "the graph" if len(self.cuts) == 1 else f"the branch that ends in {node_name(cut)}"
                    raise GraphError(
                        f"{where} has no {point}, so each of {count} {what} would yield every item of "
                        f"{', '.join(sources)} again. Put .sharding_filter() after the source, before the costly "
                        f"steps (after a shuffle of file names, say), or use a single {what[:-1]}"
                    )

    def check_shares(self, num_shards: int) -> None:
        """Raises: GraphError if something before a sharding point cannot be divided among ``num_shards`` shards."""
        if num_shards > 1:
            for node in {id(node): node for point in self.sharding_points for node in walk(point)}.values():
                traits_of(node).check_shards(node, num_shards)  # type: ignore[arg-type]

    def replicated_sources(self, num_shards: int, world_size: int = 1) -> list[str]:
        """The names of sources that each shard, or each rank, reads whole, beside others that are divided."""
        names: list[str] = []
        for _, _, among in _parts(num_shards, world_size):
            if among is Division.RANKS:
                names.extend(node_name(node) for node in self.main_nodes if not inputs_of(node))
            for cut in self.cuts:
                undivided = [cut]
                seen: set[int] = set()
                while undivided:
                    node = undivided.pop()
                    if id(node) in seen or among in division(node) or isinstance(node, TorchMapDataPipe):
                        continue
                    seen.add(id(node))
                    undivided.extend(reversed(inputs_of(node)))
                    if not inputs_of(node):
                        names.append(node_name(node))
        return list(dict.fromkeys(names))


def _parts(num_shards: int, world_size: int) -> list[tuple[int, str, Division]]:
    """Among how many of what the stream is divided, where it is more than one."""
    parts = [(world_size, "ranks", Division.RANKS), (num_shards, "shards", Division.SHARDS)]
    return [part for part in parts if part[0] > 1]


def plan(root: DataPipe) -> Plan:
    """Split the graph that ends in ``root`` into its sections.

    Raises: GraphError for a cycle, for too long a chain, for two sharding points on one path, for dispatching points in
    several branches, and where what comes once an epoch would be read twice; TypeError if ``root`` is no node.
    """
    nodes = walk(root)
    in_main: set[int] = set()
    for node in nodes:
        if runs_in_main(node) or any(id(item) in in_main for item in inputs_of(node)):
            in_main.add(id(node))
    check_single_division(nodes)
    cuts = _cuts(root, nodes, in_main)
    dispatch, branch = _dispatch(cuts)
    for cut in cuts:
        _check_read_once(root, cut, "what the shards deliver")
    if dispatch is not None:
        _check_read_once(cuts[branch], dispatch, "what is dispatched")
    branches = [_reach(cut, dispatch) for cut in cuts]
    in_shards = _union(branches)
    main_nodes = [] if cuts[0] is root else _reach(root, *cuts)
    _check_shared(nodes, [*branches, main_nodes, [] if dispatch is None else walk(dispatch)])
    return Plan(
        root=root,
        cuts=tuple(cuts),
        dispatch=dispatch,
        dispatch_branch=branch,
        dispatch_nodes=() if dispatch is None else tuple(walk(dispatch)),
        shard_nodes=tuple(in_shards),
        main_nodes=tuple(main_nodes),
        sharding_points=tuple(node for node in _union(walk(cut) for cut in cuts) if divides(node)),
    )


def _cuts(root: DataPipe, nodes: list[DataPipe], in_main: set[int]) -> list[DataPipe]:
    """The nodes where the main section takes over; map-style ones are never cut off from what indexes them."""
    if id(root) not in in_main:
        return [root]
    frontier = [item for node in nodes if id(node) in in_main for item in inputs_of(node) if id(item) not in in_main]
    branches = _union([[item for item in frontier if not isinstance(item, TorchMapDataPipe)]])
    if not branches:
        raise GraphError(
            f"nothing is left for the shards to do: {node_name(root)} and all before it have to run in the main "
            "process (runs_in_main, or is_replicable() says no). Let the source be a node that can be replicated"
        )
    # Without a sharding point, shards could not share the work: such a branch runs once, unless all are like that.
    return [cut for cut in branches if any(divides(node) for node in walk(cut))] or branches


def _dispatch(cuts: list[DataPipe]) -> tuple[DataPipe | None, int]:
    """The first node that stands after every dispatching one, on all paths, and its branch; None if there are none."""
    branches = [index for index, cut in enumerate(cuts) if any(traits_of(node).dispatches for node in walk(cut))]
    if not branches:
        return None, 0
    if len(branches) > 1:
        names = ", ".join(node_name(cuts[index]) for index in branches)
        raise GraphError(
            f"{len(branches)} branches that meet only in the main process ({names}) each have a "
            "sharding_round_robin_dispatch: what is dispatched comes once an epoch, from one process. Join the "
            "branches (zip, concat) before they are dispatched, or use sharding_filter() in all but one"
        )
    cut = cuts[branches[0]]
    for candidate in walk(cut):
        after = {id(node) for node in walk(candidate)}
        if not any(traits_of(node).dispatches for node in _reach(cut, candidate)) and any(
            traits_of(node).dispatches and id(node) in after for node in walk(cut)
        ):
            return candidate, branches[0]
    raise AssertionError("the cut itself stands after every node")


def _union(lists: Iterable[list[DataPipe]]) -> list[DataPipe]:
    return list({id(node): node for nodes in lists for node in nodes}.values())


def _reach(root: DataPipe, *barriers: DataPipe | None) -> list[DataPipe]:
    """The nodes that ``root`` reaches other than through the ``barriers``, inputs first, without the barriers."""
    closed = {id(barrier) for barrier in barriers}
    found: list[DataPipe] = []
    wanted = {id(root)}
    for node in reversed(walk(root)):
        if id(node) in wanted and id(node) not in closed:
            found.append(node)
            wanted.update(id(item) for item in inputs_of(node))
    return found[::-1]


def _check_read_once(root: DataPipe, item: DataPipe, what: str) -> None:
    """``item`` stands where the graph is cut apart: one pass over ``root`` may make only one over it."""
    if (times := reads(root)[id(item)]) > 1:
        raise GraphError(
            f"{what} comes once an epoch, and the nodes after {node_name(item)} read it {times} times. "
            "Branch before that, or make both values in one map()"
        )


def _check_shared(nodes: list[DataPipe], parts: list[list[DataPipe]]) -> None:
    """One pass over a node that several share runs in one process."""
    for node in nodes:
        if traits_of(node).shared and sum(any(item is node for item in part) for part in parts) > 1:
            raise GraphError(
                f"the branches of {node_name(node)} are in parts of the graph that run apart (before and after "
                "sharding_round_robin_dispatch, or meeting only in the main process), so they cannot share one pass "
                "over their input. Join them (zip, mux) before that, or let each read the source itself"
            )


class _Sized(TorchIterDataPipe[Any]):
    """Stands for the merged shards, or for a shard's part of a stream: known by its length alone."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


def total_length(
    planned: Plan, num_shards: int, rank: int = 0, world_size: int = 1, *, shards: Iterable[int] | None = None
) -> int:
    """The number of items that the ``num_shards`` shards of ``rank``, or those of them given, deliver together.

    Raises: TypeError where it is not known.
    """
    try:
        totals = [0 for _ in planned.cuts]
        for shard in range(num_shards) if shards is None else shards:
            shares = {Division.RANKS: (world_size, rank), Division.SHARDS: (num_shards, shard)}
            shares[Division.BOTH] = (world_size * num_shards, rank + world_size * shard)
            for branch, cut in enumerate(planned.cuts):
                totals[branch] += len(_for_shard(cut, shares))
        sized = {id(cut): _Sized(total) for cut, total in zip(planned.cuts, totals)}  # type: ignore[abstract]
        return len(replace_nodes(planned.root, sized))
    except TypeError as error:
        raise TypeError(
            f"the length of an epoch is not known ({error}). Count the items while iterating, or tell the trainer how "
            "many steps to take"
        ) from error


def _for_shard(root: DataPipe, shares: dict[Division, tuple[int, int]]) -> DataPipe:
    """The graph with its sharding points told, on private copies, which part they keep."""

    def divide(node: DataPipe) -> DataPipe:
        if not divides(node):
            return node
        if not callable(getattr(type(node), "apply_sharding", None)):
            parts, part = shares[division(node)]
            return _Sized(len(range(part, len(node), parts)))  # type: ignore[abstract]
        private = with_inputs(node, lambda item: item, private=True)
        group = getattr(node, "sharding_group_filter", None)
        private.apply_sharding(*shares[division(node)], *([] if group is None else [group]))
        return private  # type: ignore[no-any-return]

    return rewrite(root, divide)
