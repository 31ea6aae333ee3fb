"""The layout of an SPMD program's batches over the devices: specs, and which tensor gets which.

Runs where a graph is built and in the feed threads. torch_xla is not imported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from torchpipe.device.tree import children, path_of, tensors_in

__all__ = ["Sharding", "check_rank", "check_specs", "specs_for", "specs_in"]

_MAX_WARNINGS = 16
_warned: set[tuple[int, Any]] = set()  # what this process has been warned of: once, not in each epoch

_log = logging.getLogger("torchpipe")

PartitionSpec: TypeAlias = "tuple[tuple[int | str, ...] | int | str | None, ...]"


@dataclass(frozen=True)
class Sharding:
    """One axis of ``mesh`` (a ``torch_xla.distributed.spmd.Mesh``), several or None for each dimension of a tensor.

    As torch_xla's ``ShardingSpec``, which is accepted in its place, but it works for tensors of a lower rank than the
    mesh too: labels with ``("data",)`` on a mesh of ``("data", "model")``. ``minibatch=True``: the batch is this host's
    part of the global one; only its first dimension is divided, among all devices.
    """

    mesh: Any
    partition_spec: PartitionSpec
    minibatch: bool = False


def _is_spec(value: object) -> bool:
    return hasattr(value, "mesh") and hasattr(value, "partition_spec")


def specs_in(tree: Any) -> list[Any]:
    """The specs in ``tree``, in its order."""
    if _is_spec(tree):
        return [tree]
    return [spec for _, _, child in children(tree) for spec in specs_in(child)]


def check_specs(tree: Any) -> None:
    """Raises: TypeError unless ``tree`` is a spec, or lists, tuples, mappings and dataclasses with specs and None."""

    def check(value: Any, where: str) -> None:
        if value is None or _is_spec(value):
            return
        inner = list(children(value))
        if not inner:
            raise TypeError(
                f"{where} must be a ShardingSpec (torch_xla's, or torchpipe.device.Sharding), None to replicate, or a "
                f"list, tuple, dict or dataclass of these as the batch has them; got {value!r}"
            )
        for _, name, child in inner:
            check(child, where + name)

    check(tree, "input_sharding")
    if not specs_in(tree):
        raise TypeError("input_sharding holds no spec, so nothing would be divided: leave it out to replicate batches")


def specs_for(batch: Any, tree: Any) -> list[tuple[torch.Tensor, Any]]:
    """Each tensor of ``batch`` with its spec in ``tree``; None: it is to be replicated.

    Raises: KeyError for tensors that ``tree`` says nothing about, ValueError for parts of it that the batch does not
    have.
    """
    if _is_spec(tree):
        return [(tensor, _fitting(tensor, tree, batch)) for tensor in tensors_in(batch)]
    found: dict[int, tuple[torch.Tensor, Any]] = {}
    _match(batch, tree, "batch", found)
    for tensor in tensors_in(batch):  # attributes of containers, which have no place in the tree
        if id(tensor) not in found:
            raise _nothing_for(path_of(batch, tensor))
    return list(found.values())


def _fitting(tensor: torch.Tensor, spec: Any, batch: Any) -> Any:
    """The one spec of a whole batch, or None for a tensor of a lower rank: labels beside images."""
    partition = tuple(spec.partition_spec)
    if tensor.dim() >= len(partition):
        return spec
    if (tensor.dim(), partition) not in _warned and len(_warned) < _MAX_WARNINGS:
        _warned.add((tensor.dim(), partition))
        _log.warning(
            "%s has %d dimensions, fewer than the one spec %r of its batch: it is copied to every device. Give "
            "input_sharding as a tree like the batch to divide it (torchpipe.device.Sharding(mesh, ('data',)) for "
            "labels), or with None in its place to replicate it without this warning",
            path_of(batch, tensor),
            tensor.dim(),
            partition,
        )
    return None


def _nothing_for(where: str) -> KeyError:
    return KeyError(f"input_sharding has nothing for {where}: add its spec, or None to have it on every device")


# Not nested in the function above: one that calls itself is a cycle, and would keep the tensors until it is collected.
def _match(value: Any, specs: Any, where: str, found: dict[int, tuple[torch.Tensor, Any]]) -> None:
    if isinstance(value, torch.Tensor) and specs is not None and not _is_spec(specs):
        raise ValueError(f"{where} is a tensor, but input_sharding has {type(specs).__name__} at its place")
    if specs is None or _is_spec(specs):
        for tensor in tensors_in(value):
            _, before = found.setdefault(id(tensor), (tensor, specs))
            if before is not specs:
                raise ValueError(f"{where} occurs several times in the batch, and input_sharding has two specs for it")
        return
    below = _keyed(value, specs)
    for key, name, child in children(value):
        if key in below:
            _match(child, below.pop(key), where + name, found)
        elif tensors_in(child):
            raise _nothing_for(where + name)
    if below:
        raise ValueError(f"input_sharding has {list(below)!r} at {where}, which the batch does not have there")


def _keyed(value: Any, specs: Any) -> dict[Any, Any]:
    """The children of ``specs`` under the keys that ``value`` has for its own."""
    if isinstance(specs, Mapping):
        names = getattr(value, "_fields", None) if isinstance(value, tuple) else None
        return {names.index(key) if names and key in names else key: child for key, child in specs.items()}
    return {key: child for key, _, child in children(specs)}


def check_rank(tensor: torch.Tensor, spec: Any, where: str, devices: int) -> None:
    """Raises: ValueError where torch_xla would replicate ``tensor`` silently, or fail without naming it; RuntimeError,
    as torch_xla does, for rows of a minibatch that do not divide evenly."""
    partition = tuple(spec.partition_spec)
    if len(partition) != tensor.dim():
        raise ValueError(
            f"{where} has {tensor.dim()} dimensions and its spec {partition!r} has {len(partition)}, so it would be "
            "copied to every device. Give input_sharding as a tree like the batch, with a spec of the right length for "
            "each tensor (torchpipe.device.Sharding(mesh, ('data',)) for labels), or None to replicate"
        )
    if not spec.minibatch:
        return
    if any(part is not None for part in partition[1:]):
        raise ValueError(f"{where}: with minibatch=True only the first dimension can be divided, not {partition!r}")
    if tensor.dim() and tensor.shape[0] % devices:
        # The first two sentences are for scripts that look for torch_xla's
        raise RuntimeError(
            "When minibatch is configured, the per-host batch size must be divisible by local runtime device count. "
            f"Per host input data shape = {tensor.shape}, local_runtime_device_count = {devices}. {where} has "
            f"{tensor.shape[0]} rows for the {devices} devices of this host: choose a multiple as the batch size, and "
            "drop_last=True"
        )
