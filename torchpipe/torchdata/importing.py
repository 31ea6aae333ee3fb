"""``install()``: imports of torchdata's old modules find torchpipe's. Runs in whatever process imports them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType

__all__ = ["install"]

_GONE = ("torchdata.datapipes", "torchdata.dataloader2")  # after torchdata 0.9


def install() -> None:
    """Let ``import torchdata.datapipes`` and ``torchdata.dataloader2`` find torchpipe's modules, in this process, and
    ``import torchdata`` alone have ``torchdata.datapipes``, as it had.

    For code that was written for torchdata 0.9 or older, where torchdata is not installed or is a newer one, whose own
    modules (``torchdata.nodes``, ``torchdata.stateful_dataloader``) stay as they are. Call it before that code is
    imported: at the top of the script, outside ``if __name__ == "__main__"``, so that workers that are spawned do so
    as well, or in ``conftest.py`` or ``sitecustomize.py``. A second call changes nothing. What is in
    ``torch.utils.data`` is torch's, and stays so.

    Raises: ImportError if there is a torchdata that has these modules itself.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    folders = _folders()
    for name in _GONE:
        if name in sys.modules or PathFinder.find_spec(name, folders or []) is not None:
            raise ImportError(
                f"torchdata {_version()} has {name} itself, which install() does not replace: uninstall it "
                "(pip uninstall torchdata) or install torchdata 0.10 or newer, or leave the call out",
                name=name,
            )
    sys.meta_path.insert(0, _Finder(missing=folders is None))
    import_module(_GONE[0])  # which puts it into torchdata


def _folders() -> Sequence[str] | None:
    """The folders of torchdata's modules; None if there is no torchdata. Imports nothing."""
    if "torchdata" in sys.modules:
        return getattr(sys.modules["torchdata"], "__path__", [])
    found = find_spec("torchdata")
    return None if found is None else found.submodule_search_locations or []


def _version() -> str:
    try:
        return version("torchdata")
    except PackageNotFoundError:
        return "(of unknown version)"


class _Finder(MetaPathFinder):
    """Finds ``torchdata.datapipes...`` and ``torchdata.dataloader2...``, and an empty ``torchdata`` if it is missing.

    It comes before the finder of files, which would make second copies of what is in torchpipe's folders.
    """

    def __init__(self, *, missing: bool) -> None:
        self._missing = missing

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torchdata" and self._missing:
            return ModuleSpec(fullname, _Empty(), is_package=True)
        if not (fullname + ".").startswith(tuple(f"{name}." for name in _GONE)):
            return None
        found = find_spec(f"torchpipe.{fullname}")
        if found is None:
            return None
        return ModuleSpec(fullname, _Alias(), is_package=found.submodule_search_locations is not None)


class _Empty(Loader):
    def exec_module(self, module: ModuleType) -> None:
        """A package without modules of its own."""


class _Alias(Loader):
    def exec_module(self, module: ModuleType) -> None:
        """Put torchpipe's module in its place, which a module may do in ``sys.modules`` while it is imported."""
        sys.modules[module.__name__] = import_module(f"torchpipe.{module.__name__}")
