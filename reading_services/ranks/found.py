"""A check that ranks have found the same files: one that comes while ranks begin is in the lists of some alone.

Runs in the process of a rank. If ranks divide the content of files, lists that differ lose some records and repeat
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchpipe.errors import RankError
from torchpipe.formats.storage.paths import OTHER_CUTS, described
from torchpipe.node.traits import DataPipe, Division, division, node_name, walk

__all__ = ["check_found", "found_files", "shared_nodes"]

Found = list[tuple[str, list[Any]]]


def found_files(datapipe: DataPipe) -> Found:
    """The names of the nodes that ranks divide, each with the files that it has found, as ``listed`` makes them."""
    return [(node_name(node), list(vars(node)["listed"])) for node in shared_nodes(datapipe) if _lists(node)]


def shared_nodes(datapipe: DataPipe) -> list[DataPipe]:
    """The nodes that ranks divide, and their inputs: they are to be the same on all ranks."""
    points = [node for node in walk(datapipe) if division(node) in (Division.BOTH, Division.RANKS)]
    return list({id(node): node for point in points for node in walk(point)}.values())


def _lists(node: Any) -> bool:
    return getattr(type(node), "names_files", False) is True and "listed" in vars(node)


def check_found(found: Sequence[Found]) -> None:
    """``found`` of each rank. Raises: RankError unless all are the same."""
    other = next((rank for rank, files in enumerate(found) if files != found[0]), None)
    if other is None:
        return
    (name, first), (_, second) = next(pair for pair in zip(found[0], found[other]) if pair[0] != pair[1])
    if first[:-2] == second[:-2] and len(first) == len(second) == 6:
        raise RankError(
            f"the ranks cut the same files at other places with {name}: rank 0 {described(first)}, rank {other} "
            f"{described(second)}. {OTHER_CUTS} They divide what is in the files: give all ranks the same indexes, or "
            "one plan: shard_pieces(plan_file=...)"
        )
    raise RankError(
        f"the ranks have found different files with {name}: rank 0 {described(first)}, rank {other} "
        f"{described(second)}. Has one come or changed while the ranks began? They divide what is in the files: look "
        "the paths up once, and give all ranks the same list in the same order; shard_pieces(plan_file=...) of a "
        "reader of files does both"
    )
