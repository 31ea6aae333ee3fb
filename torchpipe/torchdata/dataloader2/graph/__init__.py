"""``torchdata.dataloader2.graph``: a graph as nested dicts, and changes of its nodes in place."""

from torchpipe.node.traits import DataPipe
from torchpipe.torchdata.dataloader2.graph.settings import set_datapipes_seed, set_graph_random_seed
from torchpipe.torchdata.dataloader2.graph.traversal import (
    DataPipeGraph,
    find_dps,
    list_dps,
    remove_dp,
    replace_dp,
    traverse_dps,
)

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
