"""The cluster as the driver sees it: connecting to it, what an actor asks for, where it goes, and what is missing."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from torchpipe.compat.ray_private import draining_nodes, free_on_nodes

__all__ = ["ActorRequest", "connect", "living_nodes"]

_log = logging.getLogger("torchpipe")

_REACH_S = 10.0

_CLIENT = (
    "Ray Client (ray://) is not supported: every batch would pass through a proxy, at about 0.15 GB/s, and the driver "
    "would have no shared memory with its node. Run the script on a node of the cluster (ray job submit) and give "
    "address='auto'"
)


def connect(address: str | None) -> None:
    """Connect this process to Ray, unless it is connected. Starts a local Ray if ``address`` is None and there is none.

    Raises: ValueError for Ray Client, or if this process is connected to another address; ConnectionError.
    """
    if address is not None and address.startswith("ray://"):
        raise ValueError(_CLIENT)
    if ray.util.client.ray.is_connected():
        raise ValueError(_CLIENT)
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", "local", here):
            raise ValueError(
                f"this process is connected to Ray at {here}, not at {address}: give address=None, or ray.shutdown() "
                "first"
            )
        return
    _check_reachable(address)
    context = ray.init(address=address, logging_level="warning", log_to_driver=True)
    if address is None:
        _log.warning(
            "Ray was not initialised in this process: connected to %s, with %s CPUs. Call ray.init(address='auto') "
            "first to choose a cluster",
            context.address_info["address"],
            ray.cluster_resources().get("CPU", 0),
        )


def living_nodes() -> set[str]:
    """The ids of the nodes that are there."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def _check_reachable(address: str | None) -> None:
    """Ray itself tries for minutes. Raises: ConnectionError."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_REACH_S).close()
    except OSError as error:
        raise ConnectionError(
            f"no Ray cluster answers at {address} ({error}): look at `ray status` on its head node, and give the "
            "address that `ray start --head` has shown there"
        ) from error


@dataclass(frozen=True, kw_only=True)
class ActorRequest:
    """The resources that each actor asks the cluster for, in Ray's terms."""

    num_cpus: float = 1
    memory: float | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    label_selector: Mapping[str, str] = field(default_factory=dict)
    placement_group: Any = None
    runtime_env: Mapping[str, Any] | None = None

    def options(self, starting: int, *, anywhere: bool = False) -> dict[str, Any]:
        """For ``.options()`` of the next actor: on this process's own node while that has room, then spread out.

        ``starting`` others may not have taken yet what they asked for. ``anywhere``: it has found no room on this node,
        which somebody else has taken at the same time.
        """
        options: dict[str, Any] = {
            "num_cpus": self.num_cpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": self._strategy(starting, anywhere=anywhere),
        }
        if self.memory is not None:
            options["memory"] = self.memory
        if self.resources:
            options["resources"] = dict(self.resources)
        if self.label_selector:
            options["label_selector"] = dict(self.label_selector)
        if self.runtime_env is not None:
            options["runtime_env"] = dict(self.runtime_env)
        return options

    def has_room_elsewhere(self) -> bool:
        """Is there room for an actor on a node that is not this process's own, and stays?"""
        others = free_on_nodes().keys() - draining_nodes() - {ray.get_runtime_context().get_node_id()}
        return any(self._fits(free) for node, free in free_on_nodes().items() if node in others)

    def _strategy(self, starting: int, *, anywhere: bool) -> Any:
        if self.placement_group is not None:
            return PlacementGroupSchedulingStrategy(self.placement_group)
        here = ray.get_runtime_context().get_node_id()
        if (
            not anywhere
            and not self.label_selector
            and here not in draining_nodes()
            and self._fits(free_on_nodes().get(here, {}), 1 + starting)
        ):
            return NodeAffinitySchedulingStrategy(here, soft=True)
        return "SPREAD"

    def _needed(self) -> dict[str, float]:
        asked = {"CPU": self.num_cpus, "memory": self.memory or 0, **self.resources}
        return {name: amount for name, amount in asked.items() if amount}

    def _fits(self, resources: Mapping[str, float], times: int = 1) -> bool:
        return all(resources.get(name, 0) >= times * amount for name, amount in self._needed().items())

    def _matches(self, labels: Mapping[str, str]) -> bool:
        """Only plain values are compared; of Ray's operators (``in``, ``!``), Ray knows."""
        plain = {key: value for key, value in self.label_selector.items() if value.replace("-", "").isalnum()}
        return all(labels.get(key) == value for key, value in plain.items())

    def missing(self) -> str:
        """The resources asked for and those of the cluster, as text, and whether any node could ever host an actor."""
        nodes = [node for node in ray.nodes() if node["Alive"]]
        asked = ", ".join(f"{name}: {amount:g}" for name, amount in self._needed().items()) or "nothing"
        if self.label_selector:
            asked += f", labels {dict(self.label_selector)}"
        free = free_on_nodes()
        has = "; ".join(
            f"{node['NodeManagerAddress']} has {_amounts(node['Resources'], self._needed())}, free "
            f"{_amounts(free.get(node['NodeID'], {}), self._needed())}"
            + (f", labels {_own_labels(node['Labels'])}" if self.label_selector else "")
            for node in nodes
        )
        able = [node for node in nodes if self._fits(node["Resources"]) and self._matches(node["Labels"])]
        verdict = "no node could ever host it"
        if any(self._fits(free.get(node["NodeID"], {})) for node in able):
            verdict = "there is room, so that it may be its process that takes so long (a busy node, a runtime_env)"
        elif able:
            verdict = "all of them are in use"
        return f"each worker asks for {asked}; of {len(nodes)} nodes, {has}: {verdict}"


def _amounts(resources: Mapping[str, float], names: Mapping[str, float]) -> str:
    return ", ".join(f"{name}: {resources.get(name, 0):g}" for name in names) or "all it needs"


def _own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if not key.startswith("ray.io/")}
