"""``torchdata.dataloader2.utils``: what a worker is told of itself."""

from torchpipe.execution.epoch import WorkerInfo

__all__ = ["WorkerInfo"]
