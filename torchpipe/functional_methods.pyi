"""Every functional form, typed. Written by ``make stubs`` from the nodes: do not edit."""

from collections.abc import Callable
from typing import Generic, TypeVar

from torchpipe.datapipe import IterDataPipe

__all__ = ["IterMethods", "MapMethods"]

T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")

class IterMethods(Generic[T_co]):
    """The functional forms of iterable nodes."""

    def map(self, fn: Callable[[T_co], R]) -> IterDataPipe[R]:
        """``map``: apply a function to every item."""

class MapMethods(Generic[T_co]):
    """The functional forms of map-style nodes."""
