"""Packages that are installed besides torchpipe, for the parts that need them. Runs in every process."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["needs"]


def needs(module: str, what: str, package: str = "") -> Any:
    """``module``, imported. ``package`` is the name that it is installed by, if that is another.

    Raises: ImportError that says that ``what`` needs it, and how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = package or module
        raise ImportError(
            f"{what} needs {package}, which is not installed ({error}): pip install {package}",
            name=module.partition(".")[0],
        ) from error
