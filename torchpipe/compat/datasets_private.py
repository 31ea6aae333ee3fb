"""The private names of Hugging Face's datasets that are used, each with its reason. Runs where datasets are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["files_of_shards", "keeps_a_buffer", "why_not_by_shards"]

_MOST_PARTS = 10_000


def _parts(dataset: Any) -> Iterator[Any]:
    """The parts of an ``IterableDataset``, from the end to its sources; found by the names of their classes.

    Nothing public tells of a shuffle buffer, which is not in a stream's state, of a ``take()``, which sharding makes
    another one, and of the files: a resume, and a division among ranks, have to know of them.
    """
    waiting, seen = [getattr(dataset, "_ex_iterable", None)], 0
    while waiting and (seen := seen + 1) < _MOST_PARTS:
        part = waiting.pop()
        yield part
        found: list[Any] = []
        for value in getattr(part, "__dict__", {}).values():
            found += [
                one
                for one in (value if isinstance(value, list | tuple) else [value])
                if type(one).__name__.endswith("Iterable")
            ]
        waiting += reversed(found)


def keeps_a_buffer(dataset: Any) -> bool:
    """True if the stream shuffles in a buffer of its own, which its state does not hold."""
    return any(type(part).__name__.startswith("BufferShuffled") for part in _parts(dataset))


def files_of_shards(dataset: Any) -> list[str]:
    """The names of what the shards of a stream are read from, in order: files, or the arguments of its generator."""
    names = []
    for part in _parts(dataset):
        arguments = getattr(part, "kwargs", None)
        lists = arguments.values() if isinstance(arguments, dict) else ()
        found = [tuple(map(_name, value)) for value in lists if isinstance(value, list)]
        told = dict.fromkeys(one for one in found if None not in one)  # datasets has the same files several times
        names += [name for one in told for name in one if name is not None]
    return names


def _name(item: Any) -> str | None:
    """The name that tells ``item`` from others: plain values, paths, and rows, dicts and arrays of them; else None."""
    if isinstance(item, str | int | float | bool | complex):
        return str(item)
    if isinstance(item, os.PathLike | bytes):
        return str(os.fspath(item))
    if isinstance(item, np.generic | np.ndarray):
        return f"{item.dtype}{item.shape}{_name(item.tolist())}"
    if isinstance(item, tuple | list | dict):
        held = item.items() if isinstance(item, dict) else item
        parts = ["" if part is None else _name(part) for part in held]
        return None if None in parts else repr(parts)
    # Of datasets' iterables over files: the path that it begins with
    given = getattr(item, "args", None)
    if isinstance(given, tuple) and given:
        return str(given[0]) if isinstance(given[0], str) else "|".join(map(str, given[0]))
    return None


def why_not_by_shards(dataset: Any) -> str | None:
    """Why the shards of a stream, each read by itself, have other rows than the whole; None if they have the same."""
    if getattr(dataset, "_distributed", None) is not None:
        return (
            "split_dataset_by_node() has divided it among the ranks already: leave that out, for ranks are shards too"
        )
    for part in _parts(dataset):
        kind = type(part).__name__
        for step in ("take", "skip"):
            if kind.startswith(step.capitalize()) and getattr(part, "split_when_sharding", True):
                return (
                    f"its {step}(n) counts rows of the whole stream, of which each would count a part of n in its own "
                    f"files. Divide the stream before, without {step}(n), and choose files (data_files=) or filter rows"
                )
        strategy = getattr(part, "stopping_strategy", "all_exhausted_without_replacement")
        if strategy != "all_exhausted_without_replacement":
            return (
                f"its interleave_datasets() ends by stopping_strategy={strategy!r:.40}, which each shard would do by "
                'itself: use stopping_strategy="all_exhausted_without_replacement"'
            )
        if getattr(part, "with_indices", False):
            return (
                "a function in it is given the numbers of rows (with_indices=True), which each shard would count anew"
            )
    return None
