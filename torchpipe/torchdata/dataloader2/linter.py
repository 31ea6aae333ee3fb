"""``torchdata.dataloader2.linter``: is a stream shuffled before it is divided? A pure function over graphs.

Behind a sharding point, ``shuffle`` mixes each shard's own items alone, so that the items of a shard stay together in
every epoch.
"""

from __future__ import annotations

from torchpipe.node.traits import DataPipe, divides, inputs_of, walk

__all__: list[str] = []  # torchdata's one name here begins with an underscore


def _check_shuffle_before_sharding(datapipe: DataPipe) -> bool:
    """True if on every path from a source to a sharding point there is a node that shuffles.

    Nodes of any kind with ``set_shuffle`` count. Raises: TypeError if ``datapipe`` is no node.
    """
    mixed: dict[int, bool] = {}  # True if every path to this node is shuffled
    for node in walk(datapipe):
        inputs = inputs_of(node)
        before = bool(inputs) and all(mixed[id(item)] for item in inputs)
        if divides(node) and not before:
            return False
        mixed[id(node)] = before or _shuffles(node)
    return True


def _shuffles(node: DataPipe) -> bool:
    """True if it has ``set_shuffle``, and does not say that seed and epoch change nothing (``FilePieces`` in order)."""
    return callable(getattr(type(node), "set_shuffle", None)) and getattr(node, "seeded", None) is not False
