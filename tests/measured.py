"""Loaders that measure their steps, in an expression."""

from __future__ import annotations

from typing import TypeVar

from torchpipe.loader.observing import Looks

__all__ = ["measured"]

L = TypeVar("L", bound=Looks)


def measured(loader: L, wanted: bool = True) -> L:
    """``loader``, told to measure or not."""
    loader.measuring = wanted
    return loader
