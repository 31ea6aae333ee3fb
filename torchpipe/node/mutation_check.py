"""The changes of a pass to the object that it runs on, a copy whose attributes hold much of what the given one's hold.

Runs in every process.
"""

from __future__ import annotations

import logging
from typing import Any

from torchpipe.values import ObjectTracker

__all__ = ["MutationCheck"]

_log = logging.getLogger("torchpipe")
_warned: set[type] = set()  # classes of which it was said that a pass changes them


class MutationCheck:
    """``copy``, of ``given``, as it is when this is made. ``except_types``: types that are somebody else's to keep.

    ``at_most``: what is larger, in kilobytes with all that it holds, is data.
    """

    def __init__(self, copy: Any, given: Any, *, except_types: tuple[type, ...] = (), at_most: int) -> None:
        self._tracker = ObjectTracker([copy], held_types=except_types, at_most=at_most << 10)
        theirs = getattr(given, "__dict__", {})
        own = [part for name, part in getattr(copy, "__dict__", {}).items() if part is not theirs.get(name)]
        self._own = {id(part): part for part in (copy, *own)}

    def warn_of_changes(self, name: str) -> None:
        """Say, once for each class, what a pass has changed: of its own, which no later pass will see, the numbers and
        generators; of what all passes share, everything.
        """
        kind = type(self._tracker.owners[0])
        if kind in _warned:
            return
        shared = self._tracker.changed_in_place(except_for=self._own)
        within = tuple(path + step for path in shared for step in (".", "["))
        own = [path for path in self._tracker.drawn() if path not in shared and not path.startswith(within)]
        if shared:
            _log.warning(
                "iterating %s has changed %s in place, which all passes and the shards of one process share: items may "
                "be lost or come twice, and a resume may differ. Change a copy that __iter__ makes, or give the object "
                "state_dict() and load_state_dict()",
                name,
                ", ".join(shared),
            )
        if own:
            _log.warning(
                "iterating %s has changed %s. Each pass, so each epoch, begins from the object as it was given: if the "
                "order is to differ in each epoch, draw it from the epoch (context.epoch, or shuffle() behind it)",
                name,
                ", ".join(own),
            )
        if shared or own:
            _warned.add(kind)
