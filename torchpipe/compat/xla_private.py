"""The private names of torch_xla that are used, each with its reason: it has no public ones for these.

Runs in the user's process. torch_xla takes seconds to import, so each function imports it.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["op_sharding", "runtime_part", "send", "sharding_spec", "start_step"]


def _native() -> Any:
    import torch_xla

    return vars(torch_xla)["_XLAC"]


def runtime_part() -> tuple[int, int] | None:
    """The number of this thread's part of the run and of all parts (processes, under SPMD); None before XLA's runtime.

    The public functions would start it, and then processes cannot be forked.
    """
    if not _native()._xla_runtime_is_initialized():
        return None
    import torch_xla.runtime

    runtime: Any = torch_xla.runtime
    if runtime.is_spmd():
        return runtime.process_index(), runtime.process_count()
    return runtime.global_ordinal(), runtime.world_size()


def send(tensors: list[torch.Tensor], devices: list[str], specs: list[Any]) -> list[torch.Tensor]:
    """Tensors sent to devices in one call, each with its own sharding: the public function takes one for all."""
    sent: list[torch.Tensor] = _native()._xla_tensors_from_aten(tensors, devices, specs)
    return sent


def sharding_spec(tensor: torch.Tensor, layout: tuple[Any, ...], minibatch: bool) -> Any:
    """The division of one tensor, for :func:`send`."""
    return _native().XlaShardingSpec(tensor, *layout, minibatch)


def op_sharding(mesh: Any, partition: tuple[Any, ...]) -> tuple[Any, ...]:
    """The layout of ``partition`` on ``mesh``, for :func:`sharding_spec`. Raises what torch_xla does if it fits not."""
    layout: tuple[Any, ...] = mesh._get_op_sharding_args(partition)
    return layout


def start_step(device: str) -> None:
    """Start what was recorded for ``device``. ``torch_xla.sync()`` does so for the thread's own device alone."""
    _native()._xla_step_marker(device, [], wait=False)
