"""Graphs of nodes: find, rewrite, fingerprint, plan, draw. Pure functions; nothing here runs or changes a node, but
torchdata's ``replace_dp``, ``remove_dp`` and the functions that set seeds."""

from torchpipe.graph.dot import to_dot
from torchpipe.graph.draw import draw
from torchpipe.graph.linter import check_shuffle_before_sharding
from torchpipe.graph.plan import Plan, plan
from torchpipe.graph.rewrite import find, replace_node, rewrite
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
from torchpipe.node.fingerprint import describe_graph, fingerprint
from torchpipe.node.traits import DataPipe, inputs_of, node_name, walk

__all__ = [
    "DataPipe",
    "DataPipeGraph",
    "Plan",
    "check_shuffle_before_sharding",
    "describe_graph",
    "draw",
    "find",
    "find_dps",
    "fingerprint",
    "inputs_of",
    "list_dps",
    "node_name",
    "plan",
    "remove_dp",
    "replace_dp",
    "replace_node",
    "rewrite",
    "set_datapipes_seed",
    "set_graph_random_seed",
    "to_dot",
    "traverse_dps",
    "walk",
]
