"""The changes of a pass to its private copy: the next pass does not see them. Runs in every process."""

from __future__ import annotations

import logging
from typing import Any

from torchpipe.values import Looked

__all__ = ["Kept"]

_log = logging.getLogger("torchpipe")
_warned: set[type] = set()  # classes of which it was said that a pass changes them


class Kept:
    """``owner`` as it is when this is made. ``except_types``: types that are somebody else's to keep.

    ``at_most``: what is larger, in kilobytes with all that it holds, is data.
    """

    def __init__(self, owner: Any, *, except_types: tuple[type, ...] = (), at_most: int) -> None:
        self._looked = Looked([owner], held_types=except_types, at_most=at_most << 10)

    def tell_of_changes(self, name: str) -> None:
        """Say, once for each class, that no later pass will see the numbers and generators that a pass has changed."""
        kind = type(self._looked.owners[0])
        found = [] if kind in _warned else list(self._looked.drawn())
        if found:
            _warned.add(kind)
            _log.warning(
                "iterating %s has changed %s. Each pass, so each epoch, begins from the object as it was given: if the "
                "order is to differ in each epoch, draw it from the epoch (context.epoch, or shuffle() behind it)",
                name,
                ", ".join(found),
            )
