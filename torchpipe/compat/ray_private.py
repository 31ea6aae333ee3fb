"""The parts of Ray that are not public and that there is no public way around, as of Ray 2.60.

``ray._private.state``: Ray Train asks it for the nodes that are being drained; ``ray.nodes()`` does not tell. What each
node has free is told for the whole cluster only (``ray.available_resources()``).
"""

from __future__ import annotations

from ray._private import state

__all__ = ["draining_nodes", "free_on_nodes"]


def draining_nodes() -> set[str]:
    """The ids of the nodes that will go away soon (preemption, scaling down)."""
    return set(state.state.get_draining_nodes())


def free_on_nodes() -> dict[str, dict[str, float]]:
    """Node id -> what of each resource is free there."""
    return {str(node): dict(free) for node, free in state.available_resources_per_node().items()}
