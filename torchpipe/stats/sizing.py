"""The bytes of a node's items, as a sample of them says. Runs wherever items are made and measured."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from torchpipe.machine.sizes import bytes_of
from torchpipe.stats.node_sheet import BYTES, SIZED, NodeSheet

__all__ = ["NEVER", "Sizing"]

NEVER = 1 << 62
_SHARE = 1000  # a look may take so small a part of the time that items take
_MOST_STEP = 1024  # items between two looks
_EACH = 32  # items at first are all looked at: short epochs are known exactly
_MOST_IN_VAIN = 16  # looks, all of them


class Sizing:
    """Looks at an item of a node now and then, and notes its size for those since the last look."""

    def __init__(self, sheet: NodeSheet, node: int) -> None:
        self._sheet = sheet
        self._node = node
        self._step = 1
        self._in_vain = self._looks = 0
        self._looked_ns = perf_counter_ns()

    def look(self, item: Any) -> int:
        """Note the size of ``item``, if it has one: how many items further on the next one is to be shown."""
        began, step = perf_counter_ns(), self._step
        size = bytes_of(item)
        if size is not None:
            self._sheet.count(self._node, BYTES, size * step)
            self._sheet.count(self._node, SIZED, step)
        if not size:
            self._in_vain += 1
            if self._in_vain == _MOST_IN_VAIN:
                return NEVER
        elif self._in_vain:
            self._in_vain = -NEVER  # there are some that have one
        now = perf_counter_ns()
        item_ns, self._looked_ns = (began - self._looked_ns) // step, now
        self._looks += 1
        if self._looks < _EACH:
            return 1
        # By what items have taken until now, and not by what this one is: large ones are not preferred
        self._step = max(1, min(_MOST_STEP, 2 * step, _SHARE * (now - began) // (item_ns + 1)))
        return self._step
