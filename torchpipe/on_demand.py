"""Packages whose names are imported when they are first asked for, since each process that is not forked imports anew.

Runs in every process. A package that does so names for type checkers what it offers, under ``if TYPE_CHECKING``, and
takes its ``__getattr__`` and ``__dir__`` from :func:`on_demand`; ``torchpipe/public_names.py`` is generated from that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from torchpipe.public_names import FORMS, NAMES
from torchpipe.rings import from_ring

__all__ = ["built_in", "class_path", "on_demand"]


def on_demand(package: str, *, unlisted: str = "") -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and the ``__dir__`` of ``package``: its public names and its submodules.

    Names of the package ``unlisted`` are found as well, but ``dir()`` does not have them. Raises, when asked for:
    ModuleNotFoundError if the ring that a name is in is not installed.
    """
    names, others = NAMES[package], NAMES.get(unlisted, {})

    def __getattr__(name: str) -> Any:
        inner = f"{package}.{name}"
        module = names.get(name) or others.get(name)
        try:
            if name.startswith("_"):
                raise ModuleNotFoundError(name=inner)
            found = from_ring(f"{module}:{name}") if module else import_module(inner)
        except ModuleNotFoundError as error:
            if error.name != inner:
                raise
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name) from None
        if name not in others:
            setattr(sys.modules[package], name, found)  # so that this function is not asked again
        return found

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return __getattr__, __dir__


def class_path(kind: str, form: str) -> tuple[str, str] | None:
    """Module and name of this library's class behind a form of ``kind``, ``"iter"`` or ``"map"``; None: it has none."""
    module, _, name = FORMS[kind].get(form, "").partition(":")
    return (module, name) if module else None


def built_in(kind: str, form: str) -> type | None:
    """That class, imported now if it was not yet. Raises: ModuleNotFoundError if its ring is not installed."""
    path = FORMS[kind].get(form)
    return None if path is None else from_ring(path)
