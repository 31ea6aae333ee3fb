"""The parts of Ray that are not public and that there is no public way around, as of Ray 2.60.

``ray._private.state``: Ray Train asks it for the nodes that are being drained; ``ray.nodes()`` does not tell. What each
node has free is told for the whole cluster only (``ray.available_resources()``). Whether an actor has found room is
told by ``ray.util.state``, but only where Ray's dashboard runs.
"""

from __future__ import annotations

from typing import Any

from ray._private import state

__all__ = ["draining_nodes", "free_on_nodes", "has_process"]


def draining_nodes() -> set[str]:
    """The ids of the nodes that will go away soon (preemption, scaling down)."""
    return set(state.state.get_draining_nodes())


def free_on_nodes() -> dict[str, dict[str, float]]:
    """Node id -> what of each resource is free there."""
    return {str(node): dict(free) for node, free in state.available_resources_per_node().items()}


def has_process(actor: Any) -> bool:
    """Has the actor found room on a node, so that a process is there for it, or was?"""
    actor_state = state.state.actor_table(actor._actor_id.hex())
    return bool(actor_state.get("Pid", 0)) or actor_state.get("State") in ("ALIVE", "DEAD")
