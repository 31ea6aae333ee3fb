"""The private names of Hugging Face's datasets that are used, each with its reason. Runs where datasets are read."""

from __future__ import annotations

from typing import Any

__all__ = ["first_part"]


def first_part(dataset: Any) -> Any:
    """What an ``IterableDataset`` reads from; None if there is none.

    Its shuffle buffer is among these parts alone, and is not in its state: a resume has to know of it.
    """
    return getattr(dataset, "_ex_iterable", None)
