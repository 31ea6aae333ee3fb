"""Device backends: how batches get to a device. ``to_device``, reading services and loaders use them."""

from __future__ import annotations

from typing import Any

import torch

from torchpipe.device.backend import (
    Backend,
    CpuBackend,
    DeviceKeywords,
    DeviceOptions,
    DevicePace,
    Synchronous,
    pace_for,
)
from torchpipe.device.prepare import BatchGate
from torchpipe.device.sharding import Sharding

__all__ = [
    "Backend",
    "BatchGate",
    "DeviceKeywords",
    "DeviceOptions",
    "DevicePace",
    "Sharding",
    "Synchronous",
    "pace_for",
    "resolve",
]

_KNOWN = (
    "'cpu', 'cuda', 'cuda:<index>', 'xla', 'xla:<index>', a torch.device of these types, or a torchpipe.device.Backend"
)


def resolve(device: str | torch.device | Backend | DeviceOptions) -> Backend:
    """The backend for ``device``, or for that of options: a new one for a name or a torch.device, a Backend as it is.

    Touches no device and imports none of their libraries.

    Raises: ValueError for a name that is not known and for options that the device cannot have, TypeError for other
    objects, ImportError for ``"xla"`` where torch_xla is not installed.
    """
    options = device if isinstance(device, DeviceOptions) else DeviceOptions(device)
    device = options.device
    backend = _backend(device, options.input_sharding)
    if options.input_sharding is not None and (backend is device or torch.device(str(device)).type != "xla"):
        raise ValueError(
            f"input_sharding is for device='xla' under SPMD, not for {device!r}: leave it out, or give it to the "
            "backend itself: XlaBackend(input_sharding=...)"
        )
    if (options.sync == "loader" or options.wait_every) and not isinstance(backend, Synchronous):
        raise ValueError(
            f"sync='loader' and wait_every need a backend that has sync() and wait(); {backend!r} has not: add them, "
            "or use sync='none' and do it in the training loop"
        )
    return backend


def _backend(device: Any, input_sharding: Any) -> Backend:
    if isinstance(device, Backend):
        return device
    if not isinstance(device, str | torch.device):
        raise TypeError(f"device must be {_KNOWN}; got {device!r} of type {type(device).__name__}")
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"unknown device {device!r}; known are {_KNOWN}") from error
    if wanted.type == "cpu":
        return CpuBackend()
    if wanted.type == "cuda":  # what is for one kind of device is imported where that is in use
        from torchpipe.device.cuda import CudaBackend

        return CudaBackend(wanted.index)
    if wanted.type == "xla":
        from torchpipe.device.xla import XlaBackend

        return XlaBackend(wanted.index, input_sharding=input_sharding)
    raise ValueError(f"no backend for device {str(device)!r}; known are {_KNOWN}")
