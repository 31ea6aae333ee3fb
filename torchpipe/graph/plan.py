"""The planner: a pure function from a graph to the sections that different processes run.

Imports ``errors`` and ``nodes``.

The *shard* section is everything up to the cut, and runs once for each shard; the *main* section is what follows, and
runs once, in the consumer's process: nodes that must be there (``runs_in_main``, or ``is_replicable()`` says no) and
all that reads from them. With ``sharding_round_robin_dispatch`` in the graph there is a *dispatch* section before the
shards, which also runs once: the first node behind all dispatching ones, and what it reads from.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchpipe.errors import GraphError
from torchpipe.nodes import DataPipe, Division, divides, division, inputs_of, node_name, times_read, walk

__all__ = ["Plan", "plan"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Where each node runs. ``cut`` is the last node of the shard section; ``root`` the last of the graph.

    ``dispatch`` is the last node of the dispatch section, or None if there is no such section.
    """

    root: DataPipe
    cut: DataPipe
    dispatch: DataPipe | None
    dispatch_nodes: tuple[DataPipe, ...]
    shard_nodes: tuple[DataPipe, ...]
    main_nodes: tuple[DataPipe, ...]
    sharding_points: tuple[DataPipe, ...]

    def check_num_shards(self, num_shards: int, world_size: int = 1) -> None:
        """Raises: GraphError if ``num_shards`` shards, or ``world_size`` ranks, would each yield every item."""
        divided = Division.NONE
        for node in self.sharding_points:
            divided |= division(node)
        for count, what, among in ((world_size, "ranks", Division.RANKS), (num_shards, "shards", Division.SHARDS)):
            if count > 1 and among not in divided:
                sources = [node_name(node) for node in walk(self.cut) if not inputs_of(node)]
                point = "sharding point" if not divided else f"sharding point for {what}"
                raise GraphError(
                    f"the graph has no {point}, so each of {count} {what} would yield every item of "
                    f"{', '.join(sources)} again. Put .sharding_filter() behind the source, before the costly steps "
                    f"(after a shuffle of file names, say), or use a single {what[:-1]}"
                )


def _must_run_in_main(node: DataPipe) -> bool:
    if getattr(type(node), "runs_in_main", False):
        return True
    is_replicable = getattr(type(node), "is_replicable", None)
    return callable(is_replicable) and not is_replicable(node)


def plan(root: DataPipe) -> Plan:
    """Split the graph that ends in ``root`` into its sections.

    Raises: GraphError for a cycle, for two sharding points on one path, for graphs that would need several shard
    sections, and where what comes once an epoch would be read twice; TypeError if ``root`` is no node.
    """
    nodes = walk(root)
    in_main: set[int] = set()
    for node in nodes:
        if _must_run_in_main(node) or any(id(item) in in_main for item in inputs_of(node)):
            in_main.add(id(node))
    _check_single_division(nodes)
    read = [item for node in nodes if id(node) in in_main for item in inputs_of(node) if id(item) not in in_main]
    cuts = list({id(node): node for node in read}.values()) if id(root) in in_main else [root]
    if len(cuts) != 1:
        names = ", ".join(node_name(node) for node in cuts) or "none"
        raise GraphError(
            f"the nodes that run in the main process read from {len(cuts)} branches of the shard section ({names}), "
            "and just one is supported so far. Join the branches (zip, concat) before to_device()"
        )
    cut = cuts[0]
    dispatch = _dispatch_root(cut)
    _check_read_once(root, cut, "what the shards deliver")
    if dispatch is not None:
        _check_read_once(cut, dispatch, "what is dispatched")
    return Plan(
        root=root,
        cut=cut,
        dispatch=dispatch,
        dispatch_nodes=() if dispatch is None else tuple(walk(dispatch)),
        shard_nodes=tuple(_reach(cut, dispatch)),
        main_nodes=tuple(node for node in nodes if id(node) in in_main),
        sharding_points=tuple(node for node in walk(cut) if divides(node)),
    )


def _dispatch_root(cut: DataPipe) -> DataPipe | None:
    """The first node that stands behind every dispatching one, on all paths; None if there are none."""
    if not any(_dispatches(node) for node in walk(cut)):
        return None
    for candidate in walk(cut):
        behind = {id(node) for node in walk(candidate)}
        if not any(_dispatches(node) for node in _reach(cut, candidate)) and any(
            _dispatches(node) and id(node) in behind for node in walk(cut)
        ):
            return candidate
    raise AssertionError("the cut itself stands behind every node")


def _dispatches(node: DataPipe) -> bool:
    return bool(getattr(type(node), "dispatches", False))


def _reach(root: DataPipe, barrier: DataPipe | None) -> list[DataPipe]:
    """The nodes that ``root`` reaches other than through ``barrier``, inputs first, without the barrier itself."""
    found: list[DataPipe] = []
    wanted = {id(root)}
    for node in reversed(walk(root)):
        if id(node) in wanted and node is not barrier:
            found.append(node)
            wanted.update(id(item) for item in inputs_of(node))
    return found[::-1]


def _check_read_once(root: DataPipe, item: DataPipe, what: str) -> None:
    """``item`` stands where the graph is cut apart: one pass over ``root`` may make only one over it."""
    passes = {id(item): 1}
    for node in walk(root):
        if node is not item:
            passes[id(node)] = sum(times_read(node, source) * passes[id(source)] for source in inputs_of(node))
    if passes[id(root)] > 1:
        raise GraphError(
            f"{what} comes once an epoch, and the nodes behind {node_name(item)} read it {passes[id(root)]} times. "
            "Branch before that, or make both values in one map()"
        )


def _check_single_division(nodes: list[DataPipe]) -> None:
    divided_by: dict[int, dict[Division, DataPipe]] = {}
    for node in nodes:
        above: dict[Division, DataPipe] = {}
        for item in inputs_of(node):
            above |= divided_by.get(id(item), {})
        for among in division(node):
            if among in above:
                raise GraphError(
                    f"two sharding points on one path: {node_name(node)} divides what {node_name(above[among])} has "
                    "divided already, so items would be lost. Keep the one that stands nearer to the source (only "
                    "DISTRIBUTED and MULTIPROCESSING ones go together)"
                )
        divided_by[id(node)] = above | dict.fromkeys(division(node), node)
