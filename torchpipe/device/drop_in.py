"""The former place of ``torchpipe.xla.drop_in``, kept for one version."""

from torchpipe.xla.drop_in import MpDeviceLoader, ParallelLoader, PerDeviceLoader

__all__ = ["MpDeviceLoader", "ParallelLoader", "PerDeviceLoader"]
