"""Sequences of numbers, whatever holds them, as arrays."""

from __future__ import annotations

import array
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from torchpipe.formats.numbers import given_number, holds

__all__ = ["FIELD", "KINDS", "as_array", "check_pad", "field_name", "given_pads", "pads_of"]

FIELD = "tokens"
"""The name of the field where items are bare sequences."""

KINDS = "biufc"
"""The kinds of dtypes that are numbers, as numpy calls them."""

_READ = (list, tuple, range, array.array)


def field_name(name: str) -> str:
    """The field as an error names it."""
    return "an item" if name == FIELD else f"field {name!r}"


def as_array(node: str, name: str, value: Any) -> tuple[np.ndarray[Any, Any], bool]:
    """``value`` as an array with at least one dimension; is it to be handed out as a tensor? Raises: TypeError."""
    tensor = True
    found: Any
    if isinstance(value, torch.Tensor):
        if value.dtype is torch.bfloat16:
            raise TypeError(
                f"{node} needs types that numpy has, {field_name(name)} is a tensor of torch.bfloat16: make it "
                "float32 before, by value.float(), and bfloat16 of the batch"
            )
        found = value.detach().numpy() if value.device.type == "cpu" else value.detach().cpu().numpy()
    elif isinstance(value, np.ndarray):
        found, tensor = value, False
    elif isinstance(value, bytes | bytearray | memoryview):
        found = np.frombuffer(value, np.uint8)
    elif isinstance(value, _READ):
        found = _read(node, name, value) if len(value) else np.empty(0, np.int64)
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


def _read(node: str, name: str, value: Any) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{node} needs sequences of numbers, {field_name(name)} holds sequences of several lengths, or what is no "
            f"number: {value!r:.60} ({error})"
        ) from error


def given_pads(pad_value: Any) -> Any:
    """``pad_value``, a number or a dict of them by field, as Python's own. Raises: TypeError for other things."""
    if isinstance(pad_value, Mapping):
        return {name: given_number(f"pad_value of {field_name(name)}", value) for name, value in pad_value.items()}
    return given_number("pad_value", pad_value)


def pads_of(node: str, pad_value: Any, dtypes: Mapping[str, np.dtype[Any]]) -> list[Any]:
    """The pad of each field: ``pad_value``, or its entry in it (0 without one).

    Raises: ValueError for a name that no field has, one value other than 0 for fields of several kinds, and
    a value that a field cannot hold.
    """
    if isinstance(pad_value, Mapping):
        unknown = [name for name in pad_value if name not in dtypes]
        if unknown:
            raise ValueError(
                f"{node}: pad_value names {unknown!r:.80}, and the fields are {tuple(dtypes)!r:.200}: is it misspelt?"
            )
        return [check_pad(node, name, pad_value.get(name, 0), dtype) for name, dtype in dtypes.items()]
    kinds = {"i" if dtype.kind == "u" else dtype.kind for dtype in dtypes.values()}
    if len(kinds) > 1 and not _is_zero(pad_value):
        fields = ", ".join(f"{name!r} ({dtype})" for name, dtype in dtypes.items())
        raise ValueError(
            f"{node}: pad_value={pad_value!r:.40} would go to fields of several kinds: {fields:.200}. Give a dict, "
            f"pad_value={{{next(iter(dtypes))!r}: {pad_value!r:.40}}}; fields that it does not name are padded with 0"
        )
    return [check_pad(node, name, pad_value, dtype) for name, dtype in dtypes.items()]


def _is_zero(value: Any) -> bool:
    return type(value) in (int, float, bool) and value == 0


def check_pad(node: str, name: str, pad: Any, dtype: np.dtype[Any]) -> Any:
    """``pad``, a number. Raises: ValueError if ``dtype`` cannot hold it."""
    if not holds(dtype, pad):
        raise ValueError(f"{node}: {field_name(name)} of type {dtype} cannot hold pad_value={pad!r}")
    return pad
