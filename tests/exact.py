"""What a stream gave, as text for comparing: a tensor's own shows four digits, and of many numbers some."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["exact"]


def exact(item: Any) -> str:
    """Equal only for what is bit for bit the same, on whatever device. A tenth of the time of a tensor's own text."""
    if isinstance(item, torch.Tensor):
        data = item.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return f"{item.dtype} {tuple(item.shape)} {data.hex()}"
    if isinstance(item, list | tuple):
        return f"{type(item).__name__}({', '.join(map(exact, item))})"
    if isinstance(item, dict):
        return f"{{{', '.join(f'{key!r}: {exact(value)}' for key, value in item.items())}}}"
    return repr(item)
