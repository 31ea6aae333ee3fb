"""At run time two empty classes; the generated ``functional_methods.pyi`` gives them every functional form, typed."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["IterMethods", "MapMethods"]

T_co = TypeVar("T_co", covariant=True)


class IterMethods(Generic[T_co]):
    """The functional forms of iterable nodes."""


class MapMethods(Generic[T_co]):
    """The functional forms of map-style nodes."""
