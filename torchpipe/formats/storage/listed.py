"""The files that there were when a state was saved: a few numbers and names, by which another set of them is known.

Names are those below the folder that all have in common: data may lie elsewhere when a state is loaded.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from typing import Any

from torchpipe.errors import StateMismatchError
from torchpipe.formats.storage.paths import is_remote
from torchpipe.node.describe import names_below

__all__ = ["OTHER_CUTS", "check_listed", "described", "listed", "listed_files", "size_of"]

_LONGEST = 100  # characters of a name that is shown
_WITH_CUTS = 6  # what a plan of pieces lists: the files, the number of pieces and a digest of all
OTHER_CUTS = "An index beside a file that was made or removed since does that, or another version of torchpipe."


def size_of(path: str) -> int | None:
    """The size of a local file in bytes; None for anything else."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def listed(names: Sequence[str], sizes: Sequence[int | None]) -> list[Any]:
    """Plain data: how many, of how many bytes if that is known, the first and the last, a digest of names and sizes."""
    made = hashlib.sha256()
    for name, size in zip(names, sizes, strict=True):
        made.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
    ends = [name[-_LONGEST:].encode("utf-8", "replace").decode() for name in (names[0], names[-1])] if names else []
    total = None if None in sizes else sum(size or 0 for size in sizes)
    return [len(names), total, ends, made.hexdigest()[:16]]


def listed_files(paths: Sequence[str]) -> list[Any]:
    """:func:`listed` of files that are named: where they lie does not count, their order does."""
    return listed(names_below(paths), [None if is_remote(path) else size_of(path) for path in paths])


def check_listed(what: str, saved: Any, now: list[Any], paths: Sequence[str]) -> None:
    """Raises: StateMismatchError, showing both sides, unless the files are those that there were; ``paths`` are now."""
    if saved == now:
        return
    if type(saved) is list and len(saved) == len(now) == _WITH_CUTS and saved[:-2] == now[:-2]:
        raise StateMismatchError(
            f"{what} is the same files as when the state was saved, cut at other places: then "
            f"there were {saved[-2]!r:.20} pieces (digest {saved[-1]!s:.16}), now there are {now[-2]} ({now[-1]}). "
            f"{OTHER_CUTS} A resume would repeat items and lose others: restore what there was, or begin the epoch anew"
        )
    dated = [(os.stat(path).st_mtime, path) for path in paths if size_of(path) is not None]
    newest = f" (the newest is {max(dated)[1]!r:.300})" if dated else ""
    raise StateMismatchError(
        f"{what} has changed since the state was saved: then it was {described(saved)}, now it is {described(now)}"
        f"{newest}. A resume would repeat items and lose others: restore the files, or begin the epoch anew. To let "
        "files come meanwhile, save the list of paths with the run and give that instead of looking them up"
    )


def described(value: Any) -> str:
    """A description, as text, of the list that :func:`listed` gave, or of a state's entry in its place."""
    try:
        count, size, ends, digest, *cuts = value
        between = f" from {ends[0]!r:.110} to {ends[1]!r:.110}" if ends else ""
        total = "" if size is None else f", {size!r:.20} bytes"
        pieces = f" in {cuts[0]!r:.20} pieces" if cuts else ""
        return f"{count!r:.20} files{pieces}{between}{total} (digest {(cuts[1] if cuts else digest)!s:.16})"
    except (TypeError, ValueError, LookupError):
        return f"{value!r:.80}"
