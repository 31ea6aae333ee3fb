"""Does a shard hand out one object again and again, and fill it anew each time? Then no two items may share a chunk.

Runs inside places. A chunk of small items is pickled as a whole, after its last item has been made: an item that has
been filled again by then has another one's content. So the first items travel alone, and are looked at again when the
next one has been made.
"""

from __future__ import annotations

import zlib
from typing import Any

from reading_services.hosting.items import dump_items
from torchpipe.node.containers import PLAIN

__all__ = ["Refills"]

_WATCHED = 4  # as many objects, less one, that are filled in turn are seen


class Refills:
    """Of one shard. Not thread-safe."""

    def __init__(self) -> None:
        self._watched: (
            list[tuple[Any, int | None]] | None
        ) = []  # items that came, and what they were; None: it is known
        self._found = False

    def limit(self, limit: int) -> int:
        """How many items the next chunk may have, where otherwise it might have ``limit``."""
        return 1 if self._found or self._watched is not None else limit

    def note(self, items: list[Any], limit: int) -> None:
        """A chunk of ``items`` has been made. Where large ones travel alone anyway (``limit``), nothing is kept."""
        if self._watched is None or not items:
            return
        if type(items[0]) in PLAIN:  # nobody can fill these
            self._watched = None
            return
        if limit == 1:
            return
        if any(_content(item) != content for item, content in self._watched):
            self._found, self._watched = True, None
        elif len(self._watched) + 1 == _WATCHED:
            self._watched = None
        else:
            self._watched.append((items[0], _content(items[0])))


def _content(item: Any) -> int | None:
    """None where that cannot be told: an item that cannot be sent, which whoever sends it will say."""
    try:
        body, buffers = dump_items([item])
    except Exception:
        return None
    found = zlib.crc32(body)
    for buffer in buffers:
        found = zlib.crc32(buffer, found)
    return found
