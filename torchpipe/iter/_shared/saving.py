"""Writing files whole or not at all, and nowhere else than allowed. Runs wherever its nodes run."""

from __future__ import annotations

import os
import posixpath
import uuid
from collections.abc import Iterable
from typing import Any

from torchpipe.formats.places.paths import is_remote

__all__ = ["place_in", "write_local"]


def place_in(root: str | None, path: str) -> str:
    """Where to write ``path``: relative ones within ``root``, if there is one. Raises: ValueError if it is not in it.

    Names may come out of an archive that somebody else made: ``../`` and links that lead out of ``root`` are found.
    """
    if root is None:
        return path
    if is_remote(root):
        base = root.rstrip("/")
        place = path if is_remote(path) else f"{base}/{path.lstrip('/')}"
        scheme, _, rest = place.partition("://")
        inside = f"{scheme}://{posixpath.normpath(rest)}".startswith(base + "/")
    else:
        place = os.path.join(root, path)
        real = os.path.realpath(root)
        inside = not is_remote(path) and os.path.realpath(place).startswith(real.rstrip(os.sep) + os.sep)
    if not inside:
        raise ValueError(f"{path!r} lies outside of {root!r}, where alone files may be written: nothing was")
    return place


def write_local(path: str, mode: str, pieces: Iterable[Any], part: str | None = None) -> None:
    """Write a file of this machine, and the folders around it. What begins anew is there whole, or not at all, also
    where making the pieces raises.

    ``part`` is the name that it has until it is whole, for who is its only writer; by default one like no other.
    """
    folder = os.path.dirname(path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    if "w" not in mode:
        with open(path, mode) as file:
            file.writelines(pieces)
        return
    part = os.path.join(folder, part or f".{uuid.uuid4().hex}.part")
    try:
        with open(part, mode) as file:
            file.writelines(pieces)
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise
