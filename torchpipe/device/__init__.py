"""Device backends: how batches get to a device. ``to_device`` and the reading services' ``device=`` use them."""

from __future__ import annotations

import torch

from torchpipe.device.backend import Backend
from torchpipe.device.cpu import CpuBackend
from torchpipe.device.cuda import CudaBackend
from torchpipe.device.xla import XlaBackend

__all__ = ["Backend", "resolve"]

_KNOWN = (
    "'cpu', 'cuda', 'cuda:<index>', 'xla', 'xla:<index>', a torch.device of these types, or a torchpipe.device.Backend"
)


def resolve(device: str | torch.device | Backend) -> Backend:
    """The backend for ``device``: a new one for a name or a torch.device, a Backend itself as it is.

    Touches no device and imports none of their libraries.

    Raises: ValueError for a name that is not known, TypeError for other objects, ImportError for ``"xla"`` where
    torch_xla is not installed.
    """
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
    if wanted.type == "cuda":
        return CudaBackend(wanted.index)
    if wanted.type == "xla":
        return XlaBackend(wanted.index)
    raise ValueError(f"no backend for device {str(device)!r}; known are {_KNOWN}")
