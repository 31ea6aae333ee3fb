"""Packages that a few nodes need, and that are installed besides. Runs where such a node is made."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["needs"]


def needs(package: str, form: str) -> Any:
    """The module ``package``. Raises: ImportError that says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"{form} needs {package}, which is not there ({error}): pip install {package}", name=package
        ) from error
