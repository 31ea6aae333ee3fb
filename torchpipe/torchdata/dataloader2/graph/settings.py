"""``torchdata.dataloader2.graph.settings``: what is set of a graph's nodes, in place."""

from __future__ import annotations

from collections.abc import Iterable

from torchpipe.node.traits import DataPipe, divides
from torchpipe.randomness.seeds import SeedGenerator
from torchpipe.torchdata.dataloader2.graph.traversal import list_dps, traverse_dps

__all__ = ["set_datapipes_seed", "set_graph_random_seed"]


def set_datapipes_seed(datapipes: Iterable[DataPipe], seed_generator: SeedGenerator, distributed_shared: bool) -> None:
    """Call ``set_seed`` of the nodes that have it, with a seed that all workers share or with this worker's own."""
    for node in datapipes:
        if callable(getattr(type(node), "set_seed", None)):
            shared = distributed_shared
            node.set_seed(seed_generator.generate_shared_seed() if shared else seed_generator.generate_seed())


def set_graph_random_seed(datapipe: DataPipe, seed_generator: SeedGenerator) -> DataPipe:
    """Seed the random nodes: those before a sharding point with shared seeds, the others with this worker's own."""
    graph = traverse_dps(datapipe)
    points = [node for node in list_dps(graph) if divides(node)]
    before: dict[int, DataPipe] = {id(node): node for point in points for node in list_dps(traverse_dps(point))}
    set_datapipes_seed(before.values(), seed_generator, distributed_shared=True)
    set_datapipes_seed(list_dps(graph, exclude_dps=points), seed_generator, distributed_shared=False)
    return datapipe
