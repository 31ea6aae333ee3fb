"""``torchdata.dataloader2.random``: the seeds of a loader."""

from torchpipe.randomness.seeds import SeedGenerator

__all__ = ["SeedGenerator"]
