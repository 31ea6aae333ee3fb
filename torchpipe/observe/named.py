"""``module:name`` and ``file.py:name``: the object that somebody names on a command line. Runs where it is called.

Also here: what a function that is named makes, told what it takes of workers, ranks and epochs, in the process that the
loader is for.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["Maker", "object_named"]


def object_named(target: str) -> Any:
    """The object that ``module:name`` or ``path/to/file.py:name`` names; the module is imported.

    Raises: ValueError for a target that is neither, or a name that is not there; what the import raises.
    """
    module, colon, name = target.rpartition(":")
    if not colon or not module or not name:
        raise ValueError(f"{target!r} should be MODULE:NAME, such as training.data:make_loader, or FILE.py:NAME")
    value: Any = _module(module)
    where = module
    for part in name.split("."):
        if not hasattr(value, part):
            names = [item for item in vars(value) if not item.startswith("_")] if hasattr(value, "__dict__") else []
            raise ValueError(f"{where} has no {part!r}; it has {', '.join(names[:20]) or 'nothing'}")
        value, where = getattr(value, part), f"{where}.{part}"
    return value


def _module(target: str) -> ModuleType:
    if target.startswith(".") and not target.endswith(".py"):
        raise ValueError(f"{target!r} is relative to no package: name the module as it is imported, or its file")
    if not target.endswith(".py"):
        if "" not in sys.path:  # as `python -m` does; a console script's path begins with its own folder
            sys.path.insert(0, "")
        importlib.invalidate_caches()
        return importlib.import_module(target)
    path = Path(target).resolve()
    if not path.is_file():
        raise ValueError(f"there is no file {target}, seen from {os.getcwd()}")
    # By its own name, and its folder on the path, so that started workers can import it too; where that name is another
    # module's, or none, by one that only this process and those that are forked from it know.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    importlib.invalidate_caches()
    name = path.stem if _origin_of(path.stem) == str(path) else re.sub(r"\W", "_", path.name)
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _origin_of(name: str) -> str | None:
    """The file that an import of ``name`` would give."""
    known = sys.modules.get(name)
    if known is not None:
        return getattr(known, "__file__", None)
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    return None if spec is None else spec.origin


WORKERS = ("num_workers", "workers")


class Maker:
    """Calls the function that ``target`` names; ``takes`` has those of its parameters that are known.

    These are ``workers`` (its own name is num_workers or workers), ``rank``, ``world_size`` and ``epoch``.
    """

    def __init__(self, target: str) -> None:
        self._made = object_named(target)
        self._target = target
        self.is_function = callable(self._made) and (
            not hasattr(type(self._made), "__iter__") or isinstance(self._made, type)
        )
        self._names: dict[str, str] = {}
        if self.is_function:
            names = inspect.signature(self._made).parameters
            known = {**dict.fromkeys(WORKERS, "workers"), "rank": "rank", "world_size": "world_size", "epoch": "epoch"}
            self._names = {known[name]: name for name in names if name in known}

    @property
    def takes(self) -> list[str]:
        return sorted(self._names)

    def value(self, wanted: Mapping[str, int | None]) -> Any:
        """The object that ``target`` names, or that the function there makes. Raises: TypeError for a function that
        needs more arguments; any error of the function's.
        """
        if not self.is_function:
            return self._made
        arguments = {
            self._names[name]: value for name, value in wanted.items() if name in self._names and value is not None
        }
        try:
            inspect.signature(self._made).bind(**arguments)
        except TypeError as error:
            told = ", ".join("num_workers" if name == "workers" else name for name in wanted) or "nothing"
            raise TypeError(f"{self._target} {error}: it is told {told}; give the others defaults") from None
        return self._made(**arguments)
