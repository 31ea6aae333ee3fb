"""A batch taken apart into samples: each with an id, and a digest of each of its fields. For the audited process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchpipe.testing.compare import digest_of

__all__ = ["Sample", "UnidentifiedError", "samples_of"]

IDS = ("id", "ids", "index", "idx", "indices", "key", "__key__", "sample_id")
"""Fields of a sample that are its id, if the user names no function."""


@dataclass(frozen=True)
class Sample:
    """``id`` says which sample it is; ``fields`` has a digest of the content, by name (empty: it is not compared).

    A digest is empty if the field has no content that could be compared.
    """

    id: str
    fields: Mapping[str, str]


class UnidentifiedError(Exception):
    """A batch of which nobody can say which samples are in it."""


def samples_of(batch: Any, identify: Callable[[Any], Any] | None = None) -> list[Sample]:
    """The samples of ``batch``, in their order.

    Columns (a dict, list or tuple with tensors of one length) are taken apart by rows, a list by its elements; anything
    else is one sample. ``identify(batch)`` gives one id for each sample, or one for the batch; if their number is
    another than that of the samples found, the ids alone are compared. Without it the id is a field named as in
    ``IDS``, or the digest of the content.

    Raises: UnidentifiedError for what ``identify`` raises, or gives that is no id, and for samples without content.
    """
    found = _rows(batch)
    if identify is None:
        return [_identified(fields) for fields in found]
    try:
        ids = _listed(identify(batch))
    except Exception as error:
        raise UnidentifiedError(f"the function of the ids: {type(error).__name__}: {error}") from error
    if found and not ids:
        raise UnidentifiedError("the function of the ids gives none for a batch that has samples")
    if len(ids) != len(found):
        return [Sample(one, {}) for one in ids]
    return [Sample(one, _digests(fields)) for one, fields in zip(ids, found)]


def _identified(fields: dict[str, Any]) -> Sample:
    digests = _digests(fields)
    for name in IDS:
        if name in fields and (one := _plain(fields[name])) is not None:
            return Sample(one, digests)
    if fields and not any(digests.values()):
        kinds = ", ".join(sorted({type(value).__qualname__ for value in fields.values()}))
        raise UnidentifiedError(f"a sample is {kinds}, which has no content to be told by: name a function by --id")
    return Sample(next(iter(digests.values())) if len(digests) == 1 else digest_of(digests), digests)


def _digests(fields: dict[str, Any]) -> dict[str, str]:
    return {name: _digest(value) for name, value in fields.items()}


def _digest(value: Any) -> str:
    try:
        return digest_of(value)
    except Exception:  # no content, or none that can be had
        return ""


def _listed(ids: Any) -> list[str]:
    if isinstance(ids, torch.Tensor | np.ndarray):
        ids = ids.tolist()
    if isinstance(ids, set | frozenset):
        raise TypeError(f"a {type(ids).__name__} has no order: return a list")
    several = isinstance(ids, Iterable) and not isinstance(ids, str | bytes | Mapping)
    return [_id(one) for one in (ids if several else [ids])]


def _id(value: Any) -> str:
    if value is None:
        raise TypeError("None is no id")
    plain = _plain(value)
    return digest_of(value) if plain is None else plain


def _plain(value: Any) -> str | None:
    """An id as text; None if it is no number and no text."""
    size = value.numel() if isinstance(value, torch.Tensor) else getattr(value, "size", None)
    if isinstance(value, torch.Tensor | np.ndarray | np.generic) and size == 1:
        value = value.item()
    return str(value) if isinstance(value, str | bytes | int) else None


def _rows(batch: Any) -> list[dict[str, Any]]:
    if isinstance(batch, Mapping):
        columns = {str(name): value for name, value in batch.items()}
    elif isinstance(batch, list | tuple):
        columns = {str(place): value for place, value in enumerate(batch)}
    elif isinstance(batch, torch.Tensor | np.ndarray) and batch.ndim:
        return [{"": row} for row in batch]
    else:
        return [_fields(batch)]
    if (rows := _length(columns)) is not None:
        return [{name: column[row] for name, column in columns.items()} for row in range(rows)]
    return [_fields(item) for item in batch] if isinstance(batch, list) else [columns]


def _length(columns: dict[str, Any]) -> int | None:
    """The number of rows of the columns; None if they are no columns."""
    lengths = {
        len(column) if isinstance(column, Sized) and not isinstance(column, str | bytes | Mapping) else None
        for column in map(_with_length, columns.values())
    }
    some = any(isinstance(column, torch.Tensor | np.ndarray) for column in columns.values())
    return lengths.pop() if some and len(lengths) == 1 else None


def _with_length(column: Any) -> Any:
    return None if isinstance(column, torch.Tensor | np.ndarray) and not column.ndim else column


def _fields(item: Any) -> dict[str, Any]:
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items()}
    if isinstance(item, tuple):
        return {str(place): value for place, value in enumerate(item)}
    return {"": item}
