"""Sequences of numbers, whatever holds them, as arrays."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import torch

__all__ = ["FIELD", "KINDS", "as_array", "field_name"]

FIELD = "tokens"
"""What the field is called where items are bare sequences."""

KINDS = "biufc"
"""The kinds of dtypes that are numbers, as numpy calls them."""

_READ = (list, tuple, range, array.array)


def field_name(name: str) -> str:
    """How an error calls the field."""
    return "an item" if name == FIELD else f"field {name!r}"


def as_array(node: str, name: str, value: Any) -> tuple[np.ndarray[Any, Any], bool]:
    """``value`` as an array with at least one dimension; is it to be handed out as a tensor? Raises: TypeError."""
    tensor = True
    found: Any
    if isinstance(value, torch.Tensor):
        found = value.detach().numpy() if value.device.type == "cpu" else value.detach().cpu().numpy()
    elif isinstance(value, np.ndarray):
        found, tensor = value, False
    elif isinstance(value, bytes | bytearray | memoryview):
        found = np.frombuffer(value, np.uint8)
    elif isinstance(value, _READ):
        found = np.asarray(value) if len(value) else np.empty(0, np.int64)
        if found.dtype == np.float64:
            found = found.astype(np.float32)  # as torch makes of Python's
    else:
        advice = "tokenize it first" if isinstance(value, str) else "remove it"
        if name != FIELD:
            advice = f"{advice.removesuffix(' first')} or name it in keep, for a list with an entry for each segment"
        found = f"{value!r:.60} of type {type(value).__name__}"
        raise TypeError(f"{node} needs sequences of numbers, {field_name(name)} is {found}: {advice}")
    if found.ndim == 0 or found.dtype.kind not in KINDS:
        raise TypeError(
            f"{node} needs sequences of numbers, {field_name(name)} has shape {found.shape} and dtype {found.dtype}"
        )
    return found, tensor
