"""Adapters: functions that change a graph before a loader runs it, for ``DataLoader2(datapipe_adapter_fn=...)``.

Runs in the user's process. Imports ``graph``. An adapter returns a changed copy; the user's nodes stay as they are.
"""

from __future__ import annotations

from typing import Any

from torchpipe.graph.rewrite import rewrite
from torchpipe.nodes import DataPipe, is_node, with_inputs

__all__ = ["Adapter", "Shuffle"]


class Adapter:
    """Base of the adapters with torchdata's names; any function from a datapipe to a datapipe is one as well."""

    def __call__(self, datapipe: Any) -> Any:
        """The changed graph."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(self, datapipe)")


class Shuffle(Adapter):
    """Switches every shuffling node of the graph on (the default) or off, where ``set_shuffle`` is offered."""

    def __init__(self, enable: bool = True) -> None:
        if not isinstance(enable, bool):
            raise TypeError(f"enable must be True or False, got {enable!r}")
        self.enable = enable

    def __call__(self, datapipe: Any) -> Any:
        if not is_node(datapipe):
            raise TypeError(
                f"Shuffle changes a datapipe, got {datapipe!r}: give it to DataLoader2 as datapipe_adapter_fn=Shuffle()"
            )
        return rewrite(datapipe, self._switch)

    def _switch(self, node: DataPipe) -> DataPipe:
        if not callable(getattr(type(node), "set_shuffle", None)):
            return node
        changed = with_inputs(node, lambda item: item, private=True)
        changed.set_shuffle(self.enable)
        return changed  # type: ignore[no-any-return]
