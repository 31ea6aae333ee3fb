"""``module:name`` on the command line: the loader that it names, or one over the graph that it names."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from difflib import SequenceMatcher
from typing import Any

from torchpipe.data.loader import DataLoader
from torchpipe.errors import StateError
from torchpipe.execution.ranks import acting_as
from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.node.fingerprint import describe_graph
from torchpipe.node.traits import is_node
from torchpipe.node.validate import check_count
from torchpipe.observe.named import Maker
from torchpipe.state import decode

__all__ = ["loader_of", "refusal"]


def loader_of(target: str, workers: int | None = None, **told: int) -> Any:
    """The loader that ``module:name`` or ``file.py:name`` names, or over the graph, or what the function there makes.

    A function gets those of ``told`` that it takes (``rank``, ``world_size``), and its other parameters keep their
    defaults. A graph gets ``workers`` worker processes, or runs in process. Raises: ValueError for a target that is
    none of these, ``workers`` with a loader, which has its own, or a rank that changes nothing; TypeError for a
    function with another parameter that has no default; ImportError; what the user's own code raises.
    """
    maker = Maker(target)
    with acting_as(told.get("rank", 0), told.get("world_size", 1)) if told else nullcontext() as acting:
        value = maker.value(told)
        if is_node(value):
            value = DataLoader2(value, reading_service=_service(workers))
        elif not isinstance(value, DataLoader | DataLoader2):
            raise ValueError(
                f"{target} is {type(value).__name__}: name a torchpipe loader, a graph of nodes, or a function that "
                "makes one"
            )
        elif workers is not None:
            raise ValueError(f"--workers={workers}: {target} is a loader, which has workers of its own; leave it out")
    if acting is not None and acting.ranks.count > 1 and not acting.asked and "rank" not in maker.takes:
        raise ValueError(
            f"{target} makes the same loader for each rank: let the function take rank and world_size, make a loader "
            "that divides its data (distributed=True, DistributedReadingService), or leave --rank and --world-size out"
        )
    return value


def _service(workers: int | None) -> Any:
    if not check_count("--workers", 0 if workers is None else workers, at_least=0):
        return None
    from reading_services import MultiProcessingReadingService

    return MultiProcessingReadingService(num_workers=workers or 0)


def refusal(target: str, state: Any) -> str:
    """Why the loader that ``target`` makes refuses ``state``, and each node that differs; empty if it takes it."""
    if not isinstance(state, Mapping):
        return "this is a part of a state, which no loader takes"
    rank, ranks = state.get("rank", 0), state.get("world_size", 1)
    loader = loader_of(target, rank=rank if type(rank) is int else 0, world_size=ranks if type(ranks) is int else 1)
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
