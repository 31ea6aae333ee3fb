"""``torchdata.dataloader2.adapter``: what a loader does to its graph before it runs it."""

from torchpipe.graph.adapters import Adapter, CacheTimeout, Shuffle

__all__ = ["Adapter", "CacheTimeout", "Shuffle"]
