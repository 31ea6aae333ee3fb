"""``torchdata.dataloader2.graph``: a graph as nested dicts, and changes of its nodes in place."""

from torchpipe.graph.traversal import (
    DataPipeGraph,
    find_dps,
    list_dps,
    remove_dp,
    replace_dp,
    set_datapipes_seed,
    set_graph_random_seed,
    traverse_dps,
)
from torchpipe.node.traits import DataPipe

__all__ = [
    "DataPipe",
    "DataPipeGraph",
    "find_dps",
    "list_dps",
    "remove_dp",
    "replace_dp",
    "set_datapipes_seed",
    "set_graph_random_seed",
    "traverse_dps",
]
