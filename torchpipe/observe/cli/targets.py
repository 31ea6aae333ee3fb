"""``module:name`` on the command line: the loader that it names, or one over the graph that it names."""

from __future__ import annotations

import inspect
from typing import Any

from torchpipe.data.loader import DataLoader
from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.named import object_named
from torchpipe.node.traits import is_node
from torchpipe.node.validate import check_count

__all__ = ["loader_of"]


def loader_of(target: str, workers: int | None = None) -> Any:
    """The loader that ``module:name`` or ``file.py:name`` names, or over the graph, or what the function there makes.

    A graph gets ``workers`` worker processes, or runs in process. Raises: ValueError for a target that is neither, or
    ``workers`` with a loader, which has its own; ImportError; what the user's own code raises.
    """
    value: Any = object_named(target)
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
