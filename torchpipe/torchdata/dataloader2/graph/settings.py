"""``torchdata.dataloader2.graph.settings``: seeds, set in a graph's nodes."""

from torchpipe.graph.traversal import set_datapipes_seed, set_graph_random_seed

__all__ = ["set_datapipes_seed", "set_graph_random_seed"]
