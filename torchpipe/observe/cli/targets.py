"""``module:name`` on the command line: the loader that it names, or one over the graph that it names."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from torchpipe.data.loader import DataLoader
from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.node.traits import is_node
from torchpipe.node.validate import check_count

__all__ = ["loader_of"]


def loader_of(target: str, workers: int | None = None) -> Any:
    """The loader that ``module:name`` or ``file.py:name`` names, or over the graph, or what the function there makes.

    A graph gets ``workers`` worker processes, or runs in process. Raises: ValueError for a target that is neither, or
    ``workers`` with a loader, which has its own; ImportError; what the user's own code raises.
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
    if not is_node(value) and not isinstance(value, DataLoader | DataLoader2) and callable(value):
        value = _called(value, target)
    if isinstance(value, DataLoader | DataLoader2):
        if workers is not None:
            raise ValueError(f"--workers={workers}: {target} is a loader, which has workers of its own; leave it out")
        return value
    if not is_node(value):
        raise ValueError(
            f"{target} is {type(value).__name__}: name a torchpipe loader, a graph of nodes, or a function without "
            "arguments that makes one"
        )
    return DataLoader2(value, reading_service=_service(workers))


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
    # Under its own name and with its folder on the path, so that worker processes find it too.
    sys.path.insert(0, str(path.parent))
    if path.stem in sys.modules:
        raise ValueError(f"{target} has the name of the module {path.stem!r}, which is imported already: rename it")
    return importlib.import_module(path.stem)


def _called(function: Any, target: str) -> Any:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ValueError(f"{target} has to be callable without arguments: {error}") from None
    return function()


def _service(workers: int | None) -> Any:
    if not check_count("--workers", 0 if workers is None else workers, at_least=0):
        return None
    from reading_services import MultiProcessingReadingService

    return MultiProcessingReadingService(num_workers=workers or 0)
