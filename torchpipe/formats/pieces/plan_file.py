"""A plan of pieces in a file: whoever comes first makes it, and ranks and runs that come later have the same.

Runs in the process that builds a graph. The file is data in the form of states; nothing in it is run.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torchpipe.errors import StateError
from torchpipe.formats.pieces.plan import PiecePlan
from torchpipe.formats.storage.paths import is_remote
from torchpipe.formats.storage.writing import Lease
from torchpipe.state import decode, encode

__all__ = ["check_plan_file", "plan_in_file"]

_VERSION = 1
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


def plan_in_file(file: str, paths: Sequence[str], asked: Mapping[str, Any], make: Callable[[], PiecePlan]) -> PiecePlan:
    """The plan that ``file`` holds, or else the one that ``make()`` makes, which it holds from then on.

    ``asked``: how the files are cut. Raises: ValueError for a plan of other pieces or files, and for what is no plan.
    """
    if not os.path.exists(file):
        lease = Lease(f"{file}.lock")
        taken = lease.take(_WAIT_S)
        try:
            if not os.path.exists(file):
                _write(file, encode({"plan of pieces": _VERSION, "asked": dict(asked), **make().to_data()}))
        finally:
            if taken:
                lease.give_back(remove=True)
    plan = _read(file, asked)
    missing = sorted(set(plan.paths) - set(paths))
    if missing:
        raise ValueError(
            f"{file} is the plan of {len(plan.paths)} files, of which {len(missing)} are not among those that are "
            f"given now, such as {missing[0]!r:.200}. Restore them; or remove the plan, and begin the epoch anew"
        )
    left_out = len(set(paths) - set(plan.paths))
    if left_out:
        _log.warning(
            "%d files that are not in the plan %s are not read: remove it, to have them planned", left_out, file
        )
    return plan


def _write(file: str, data: bytes) -> None:
    """Make it, unless another process has: whoever comes later reads the first one's."""
    part = f"{file}.{uuid.uuid4().hex}"
    try:
        with open(part, "xb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
        with suppress(FileExistsError):
            os.link(part, file)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)


def _read(file: str, asked: Mapping[str, Any]) -> PiecePlan:
    with open(file, "rb") as opened:
        content = opened.read()
    try:
        data = decode(content)
        if data["plan of pieces"] != _VERSION:
            raise ValueError(f"it has version {data['plan of pieces']!r:.20}, and this torchpipe reads {_VERSION}")
        theirs, plan = data["asked"], PiecePlan.from_data(data)
    except (StateError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"{file} is no plan of pieces, or a damaged one: {error}. Remove it") from error
    for name, value in asked.items():
        if theirs.get(name) != value:
            raise ValueError(
                f"{file} is the plan of other pieces: of {name}={theirs.get(name)!r:.80}, here it is {value!r:.80}. "
                "Remove it, and begin the epoch anew, or name another file"
            )
    return plan
