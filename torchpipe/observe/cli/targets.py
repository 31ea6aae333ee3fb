"""``module:name`` on the command line: the loader that it names, or one over the graph that it names."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Any

from torchpipe.data.loader import DataLoader
from torchpipe.errors import StateError
from torchpipe.graph import describe_graph
from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.named import object_named
from torchpipe.node.traits import is_node
from torchpipe.node.validate import check_count
from torchpipe.state import decode
from torchpipe.testing.audit.loaders import Maker

__all__ = ["loader_of", "loader_of_rank", "refusal"]


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


def loader_of_rank(target: str, rank: int = 0, world_size: int = 1) -> Any:
    """The loader that ``target`` names, or that the function there makes; which is told the rank, if it takes it.

    Its other parameters keep their defaults, ``num_workers`` as well: the number of workers decides what a worker's
    code makes, and none starts unless the loader is iterated. Raises: ValueError for what is no loader of torchpipe's;
    TypeError for a function with another parameter that has no default; what the user's code raises.
    """
    made = Maker(target).make({"rank": rank, "world_size": world_size})
    if not made.is_ours:
        raise ValueError(f"{target} is {made.name}: name a loader of torchpipe's, or a function that makes one")
    return made.loader


def refusal(target: str, state: Any) -> str:
    """Why the loader that ``target`` makes refuses ``state``, and each node that differs; empty if it takes it."""
    if not isinstance(state, Mapping):
        return "this is a part of a state, which no loader takes"
    ranks = [state.get("rank", 0), state.get("world_size", 1)]
    loader = loader_of_rank(target, *(number if type(number) is int else 0 for number in ranks))
    try:
        loader.load_state_dict(dict(state), allow_pickle=False)
    except StateError as error:
        text = f"{type(error).__name__}: {error}"
        differing = _nodes_that_differ(state, loader) if isinstance(loader, DataLoader2) else []
        return "\n".join([text, *(["all nodes that differ (- saved, + here):", *differing] if differing else [])])
    finally:
        loader.shutdown()
    return ""


def _nodes_that_differ(state: Mapping[str, Any], loader: DataLoader2[Any]) -> list[str]:
    payload = state["payload"] if isinstance(state.get("payload"), bytes) else b""
    try:
        saved = decode(payload, keep_opaque=True)["graph"].splitlines()
    except (StateError, LookupError, TypeError, AttributeError):
        return []
    here = describe_graph(loader.datapipe).splitlines()
    alike = SequenceMatcher(None, list(map(_unnumbered, saved)), list(map(_unnumbered, here)), autojunk=False)
    lines = []
    for tag, first, last, start, end in alike.get_opcodes():
        if tag != "equal":
            lines += [f"- {line}" for line in saved[first:last]] + [f"+ {line}" for line in here[start:end]]
    return lines


def _unnumbered(line: str) -> str:
    """A node's line without the numbers of nodes, which change with any node that is put in before it."""
    node = line.partition(" ")[2]
    return node.rpartition(" <- ")[0] or node
