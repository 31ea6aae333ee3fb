"""Graphs of nodes: find, change, plan, draw. Pure functions; nothing here runs or changes a node."""

from torchpipe.graph.draw import draw, to_dot
from torchpipe.graph.plan import plan
from torchpipe.graph.rewrite import find, replace_node, rewrite
from torchpipe.node.traits import walk

__all__ = ["draw", "find", "plan", "replace_node", "rewrite", "to_dot", "walk"]
