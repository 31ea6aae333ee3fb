"""``torchdata.dataloader2.adapter``: what a loader does to its graph before it runs it, by ``datapipe_adapter_fn=``.

Runs in the user's process. An adapter returns a changed copy; the user's nodes stay as they are.
"""

from __future__ import annotations

import warnings
from typing import Any

from torchpipe.compat.torch_datapipes import TorchMapDataPipe
from torchpipe.graph.rewrite import rewrite
from torchpipe.node.functional import lookup
from torchpipe.node.traits import DataPipe, is_node, node_name, walk, with_inputs

__all__ = ["Adapter", "CacheTimeout", "Shuffle"]


class Adapter:
    """Base of the adapters with torchdata's names; any function from a datapipe to a datapipe is one as well."""

    def __call__(self, datapipe: Any) -> Any:
        """The changed graph."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(self, datapipe)")


class Shuffle(Adapter):
    """Switches every shuffling node of the graph on (the default) or off, where ``set_shuffle`` is offered.

    With True, a graph without such a node gets a ``shuffle()`` at its end, and a warning, as with torch; None changes
    nothing.
    """

    def __init__(self, enable: bool | None = True) -> None:
        if enable is not None and not isinstance(enable, bool):
            raise TypeError(f"enable must be True, False or None, got {enable!r}")
        self.enable = enable

    def __call__(self, datapipe: Any) -> Any:
        if not is_node(datapipe):
            raise TypeError(
                f"Shuffle changes a datapipe, got {datapipe!r}: give it to DataLoader2 as datapipe_adapter_fn=Shuffle()"
            )
        if self.enable is None:
            return datapipe
        if self.enable and not any(map(_shuffles, walk(datapipe))):
            return _shuffled(datapipe)
        return rewrite(datapipe, self._switch)

    def _switch(self, node: DataPipe) -> DataPipe:
        if not _shuffles(node):
            return node
        changed = with_inputs(node, lambda item: item, private=True)
        changed.set_shuffle(self.enable)
        return changed  # type: ignore[no-any-return]


class CacheTimeout(Adapter):
    """Lets every ``end_caching`` of the graph wait ``timeout`` seconds for files that other processes are making."""

    def __init__(self, timeout: float | None = None) -> None:
        if not isinstance(timeout, int | float) or not timeout > 0:
            raise ValueError(f"timeout must be a number of seconds above 0, got {timeout!r}")
        self.timeout = timeout

    def __call__(self, datapipe: Any) -> Any:
        if not is_node(datapipe):
            raise TypeError(f"CacheTimeout changes a datapipe, got {datapipe!r}: give it to DataLoader2")
        return rewrite(datapipe, self._set)

    def _set(self, node: DataPipe) -> DataPipe:
        if not callable(getattr(type(node), "set_timeout", None)):
            return node
        changed = with_inputs(node, lambda item: item, private=True)
        changed.set_timeout(self.timeout)
        return changed  # type: ignore[no-any-return]


def _shuffles(node: DataPipe) -> bool:
    return callable(getattr(type(node), "set_shuffle", None))


def _shuffled(datapipe: DataPipe) -> Any:
    shuffle = lookup("map" if isinstance(datapipe, TorchMapDataPipe) else "iter", "shuffle", datapipe)
    assert shuffle is not None  # torchpipe.iter and torchpipe.map are imported with the package
    warnings.warn(
        f"Shuffle(True) found nothing to switch on, so it put a shuffle() after {node_name(datapipe)}, the last node: "
        "after sharding, within each shard, and of whole batches if there are any. Put .shuffle() where it is meant, "
        "after the source",
        stacklevel=3,
    )
    return shuffle()
