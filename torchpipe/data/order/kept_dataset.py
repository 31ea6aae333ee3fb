"""What an iterable dataset of the user's keeps between passes, as a value. Runs wherever the dataset is used."""

from __future__ import annotations

from typing import Any

from torchpipe.node.kept import Kept

__all__ = ["kept_of"]

_MOST_KEPT = 1000  # items of a list, kilobytes of an array: what is larger is data


def kept_of(dataset: Any) -> Kept:
    """As ``dataset`` is now, but for its data."""
    return Kept(dataset, at_most=_MOST_KEPT)
