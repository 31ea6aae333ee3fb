"""Graphs of nodes: find, rewrite, fingerprint, plan, draw. Pure functions; nothing here runs or changes a node."""

from torchpipe.graph.draw import draw
from torchpipe.graph.fingerprint import describe_graph, fingerprint
from torchpipe.graph.plan import Plan, plan
from torchpipe.graph.rewrite import find, replace_node, rewrite
from torchpipe.nodes import inputs_of, node_name, walk

__all__ = [
    "Plan",
    "describe_graph",
    "draw",
    "find",
    "fingerprint",
    "inputs_of",
    "node_name",
    "plan",
    "replace_node",
    "rewrite",
    "walk",
]
