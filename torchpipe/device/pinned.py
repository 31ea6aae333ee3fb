"""Pinned memory: page-locked memory of the host, from which a GPU takes batches while the loop computes.

Runs in the feed thread of a device stage; without workers, in the user's thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torchpipe.compat.torch_private import pin_memory

__all__ = ["pinned", "pinned_copy"]

_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}  # numpy knows these


def pinned_copy(values: torch.Tensor) -> torch.Tensor:
    """The same plain values in pinned memory, without gaps.

    numpy copies in the calling thread. torch would divide the copy among a thread for each core, which then wait for
    cores that worker processes have: 2 GB/s beside 8 workers on 16 cores, in the place of 6. ``tensor.pin_memory()``
    does so as well, and fails for expanded tensors.
    """
    made = torch.empty_like(values, pin_memory=True)
    kind = _SAME_SIZE[values.element_size()]
    np.copyto(made.view(kind).numpy(), values.view(kind).numpy())
    return made


def pinned(data: Any, device: str) -> Any:
    """``data`` as ``torch.utils.data.DataLoader(pin_memory=True)`` gives it."""
    kind = type(data)
    if kind is torch.Tensor and _is_plain(data):
        return data if data.is_pinned() else pinned_copy(data.resolve_conj().resolve_neg())
    if kind is dict:
        return {key: pinned(value, device) for key, value in data.items()}
    if kind is list:
        return [pinned(part, device) for part in data]
    return pin_memory(data, device)  # type: ignore[no-untyped-call]


def _is_plain(tensor: torch.Tensor) -> bool:
    strided = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
    return strided and tensor.device.type == "cpu" and not tensor.requires_grad
