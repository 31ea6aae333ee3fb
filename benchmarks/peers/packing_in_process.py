"""torchpipe: the graph of ``packing_torchpipe`` without workers, as torchtitan's loader has none."""

from __future__ import annotations

from benchmarks.peers import packing_torchpipe

__all__ = ["Loader"]


class Loader(packing_torchpipe.Loader):
    workers = 0
