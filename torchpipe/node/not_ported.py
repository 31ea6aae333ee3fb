"""The nodes that torchdata 0.9 had and this library has not, so that asking for one says what to do instead.

Runs in every process.
"""

from __future__ import annotations

import difflib
import opcode
import sys
from collections.abc import Callable, Iterable
from typing import Any

from torchpipe.on_demand import on_demand

__all__ = ["NOT_PORTED", "explain_missing", "module_getattr"]

_AIS = (
    "AIStore speaks S3's protocol: use {} with URLs s3://..., and endpoint_url= the address of its S3 interface "
    "(docs/migration.md)"
)

NOT_PORTED: dict[str, dict[str, tuple[str, str]]] = {
    "iter": {
        "AISFileLister": ("list_files_by_ais", _AIS.format("list_files_by_s3")),
        "AISFileLoader": ("load_files_by_ais", _AIS.format("load_files_by_s3")),
    },
    "map": {},
}
"""kind of node -> class -> (functional form or an empty text, what to do instead)."""


def explain_missing(kind: str, node: str, name: str, forms: Iterable[str]) -> str:
    """Why a node of class ``node`` has no attribute ``name``; ``forms`` are the functional forms that there are."""
    for cls, (form, instead) in NOT_PORTED[kind].items():
        if form == name:
            return f"{name!r} is torchdata's {cls}. {instead}"
    if found := difflib.get_close_matches(name, forms, 1):
        return f"{node} has no attribute or functional form {name!r}: did you mean {found[0]!r}?"
    return f"{node} has no attribute or functional form {name!r} (is the module that defines it imported?)"


def module_getattr(module: str, kind: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package of nodes, which is one of those whose names come on demand.

    For a name of :data:`NOT_PORTED`, ``hasattr`` stays False, and an import says why.
    """
    found, names = on_demand(module)

    def __getattr__(name: str) -> Any:
        if name not in NOT_PORTED[kind]:
            return found(name)
        message = f"{name} is a node of torchdata. {NOT_PORTED[kind][name][1]}"
        caller = sys._getframe(1)
        # ``from package import name`` puts a text of its own in the place of an AttributeError's, but lets others pass.
        if caller.f_lasti >= 0 and caller.f_code.co_code[caller.f_lasti] == opcode.opmap["IMPORT_FROM"]:
            raise ImportError(message, name=name)
        raise AttributeError(message)

    return __getattr__, names
