"""The part of a run that this process or thread is: ``ordinal``.

Runs in the process, or thread of ``xmp.spawn``, that asks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed as dist

from torchpipe.compat.xla_private import runtime_part
from torchpipe.node.validate import check_count

__all__ = ["Ordinal", "ordinal"]


@dataclass(frozen=True, slots=True)
class Ordinal:
    """This process or thread is number ``rank`` of the ``world_size`` that divide the stream."""

    rank: int
    world_size: int


def ordinal(rank: int | None = None, world_size: int | None = None) -> Ordinal:
    """The part of the run that this process, or thread of ``xmp.spawn``, is: as given, or as the surroundings say.

    Asked are the XLA runtime, if it has been started here (under SPMD, where one process drives all devices, its
    process index), torch.distributed, if initialized, and ``RANK`` and ``WORLD_SIZE`` as torchrun sets them. A source
    that says 0 of 1 knows of no others and does not count. Call it in the thread that it is about.

    Raises: ValueError if only one is given, if ``rank`` is not below ``world_size``, or if two sources differ.
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"give both rank and world_size, or none of them; got rank={rank}, world_size={world_size}")
    if rank is not None and world_size is not None:
        return _checked(rank, world_size)
    found = {name: source for name, source in _sources().items() if source.world_size > 1}
    if len(set(found.values())) > 1:
        shown = ", ".join(f"{name} says {source.rank} of {source.world_size}" for name, source in found.items())
        raise ValueError(f"it is not clear which part of the run this is: {shown}. Give rank and world_size")
    return next(iter(found.values()), Ordinal(0, 1))


def _checked(rank: int, world_size: int) -> Ordinal:
    world_size, rank = check_count("world_size", world_size, at_least=1), check_count("rank", rank, at_least=0)
    if rank >= world_size:
        raise ValueError(f"rank must be below world_size, got rank={rank}, world_size={world_size}")
    return Ordinal(rank, world_size)


def _sources() -> Mapping[str, Ordinal]:
    found = {}
    if "torch_xla" in sys.modules:
        part = runtime_part()
        if part is not None:
            found["the XLA runtime"] = Ordinal(*part)
    if dist.is_available() and dist.is_initialized():
        found["torch.distributed"] = Ordinal(dist.get_rank(), dist.get_world_size())
    environment = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if all(environment):
        try:
            numbers = [int(value or "") for value in environment]
        except ValueError:
            raise ValueError(
                f"RANK={environment[0]!r} and WORLD_SIZE={environment[1]!r} in the environment are no numbers: mend "
                "them, or give rank and world_size"
            ) from None
        found["the environment"] = _checked(*numbers)
    return found
