"""A plan of pieces in a file: whoever comes first makes it, and ranks and runs that come later have the same.

Runs in the process that builds a graph. The file is data in the form of states; nothing in it is run.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchpipe.errors import StateError
from torchpipe.formats.pieces.plan import PiecePlan
from torchpipe.formats.storage.listed import size_of
from torchpipe.formats.storage.paths import is_remote
from torchpipe.formats.storage.writing import Lease, write_first
from torchpipe.node.describe import names_below
from torchpipe.state import decode, encode

__all__ = ["check_plan_file", "plan_in_file"]

_VERSION = 3
_WAIT_S = 600.0  # for somebody else who is making it; then it is made here as well

_log = logging.getLogger("torchpipe")


def check_plan_file(value: object) -> str | None:
    """``value`` as text. Raises: TypeError for what is no path; ValueError for a URL."""
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or not path:
        raise TypeError(f"plan_file must be the path of a file, got {value!r:.80} of type {type(value).__name__}")
    if is_remote(path):
        raise ValueError(f"plan_file must be a local path that all ranks share, got {path!r:.200}")
    return path


def plan_in_file(
    file: str, paths: Sequence[str], asked: Mapping[str, Any], make: Callable[[Sequence[str]], PiecePlan]
) -> PiecePlan:
    """The plan that ``file`` holds, or else the one that ``make(paths)`` makes, which it holds from then on.

    ``asked``: how the files are cut. The files may have moved: their names below the folder that all have in common,
    and their sizes, are to be the same. ``paths`` may have others besides, and the plan file itself. Raises: ValueError
    for a plan of other pieces or files, or of these in another order, and for what is no plan.
    """
    paths = [path for path in paths if not _is_own(file, path)]
    if not os.path.exists(file):
        lease = Lease(f"{file}.lock")
        taken = lease.take(_WAIT_S)
        try:
            if not os.path.exists(file):
                plan = make(paths)
                data = {"plan of pieces": _VERSION, "asked": dict(asked), "digest": plan.digest()}
                write_first(file, encode({**data, **plan.to_data()}))
        finally:
            if taken:
                lease.give_back(remove=True)
    return _found_again(file, _read(file, asked), paths)


def _is_own(file: str, path: str) -> bool:
    """True if ``path`` is the plan file, or one of those that exist while it is made."""
    if is_remote(path) or not os.path.basename(path).startswith(os.path.basename(file)):
        return False
    rest = os.path.abspath(path).removeprefix(os.path.abspath(file))
    return rest in ("", ".lock") or re.fullmatch(r"\.[0-9a-f]{32}", rest) is not None


def _found_again(file: str, plan: PiecePlan, paths: Sequence[str]) -> PiecePlan:
    """``plan``, of those of ``paths`` that are in it."""
    planned, given = list(plan.paths), list(paths)
    if has_moved := not set(planned) <= set(given):
        planned, given = names_below(planned), names_below(given)
    wanted = set(planned)
    kept = [number for number, name in enumerate(given) if name in wanted]
    missing = sorted(wanted - {given[number] for number in kept})
    if missing:
        raise ValueError(
            f"{file} is the plan of {len(plan.paths)} files, of which {len(missing)} are not among those that are "
            f"given now, such as {missing[0]!r:.200}. Restore them; or remove the plan, and begin the epoch anew"
        )
    if [given[number] for number in kept] != planned:
        raise ValueError(
            f"{file} is the plan of the same files in another order, or each another number of times: of "
            f"{len(planned)}, and {len(kept)} are given now. Give them as they were given then (a glob sorts them); or "
            "remove the plan, and begin the epoch anew"
        )
    here = [paths[number] for number in kept]
    if has_moved:
        _check_sizes(file, plan, here)
    if left_out := len(paths) - len(here):
        _log.warning(
            "%d files that are not in the plan %s are not read: remove it, to have them planned", left_out, file
        )
    return plan.at(here)


def _check_sizes(file: str, plan: PiecePlan, paths: Sequence[str]) -> None:
    """Raises: ValueError unless the local files that have moved have the sizes that were planned."""
    for path, planned in zip(paths, plan.sizes):
        now = None if is_remote(path) else size_of(path)
        if None not in (planned, now) and planned != now:
            raise ValueError(
                f"{file} is the plan of other files of these names: {path} has {now} bytes, and had {planned}. Restore "
                "it; or remove the plan, and begin the epoch anew"
            )


def _read(file: str, asked: Mapping[str, Any]) -> PiecePlan:
    with open(file, "rb") as opened:
        content = opened.read()
    try:
        data = decode(content)
        if data["plan of pieces"] != _VERSION:
            raise ValueError(f"it has version {data['plan of pieces']!r:.20}, and this torchpipe reads {_VERSION}")
        theirs, plan = data["asked"], PiecePlan.from_data(data)
        if plan.digest() != data["digest"]:
            raise ValueError("its digest is that of another plan")
    except (StateError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"{file} is no plan of pieces, or a damaged one: {error}. Remove it") from error
    for name, value in asked.items():
        if theirs.get(name) != value:
            raise ValueError(
                f"{file} is the plan of other pieces: of {name}={theirs.get(name)!r:.80}, here it is {value!r:.80}. "
                "Remove it, and begin the epoch anew, or name another file"
            )
    return plan
