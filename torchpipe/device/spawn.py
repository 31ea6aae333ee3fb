"""The former place of ``torchpipe.xla.spawn``, kept for one version."""

from torchpipe.xla.spawn import Ordinal, SerialExecutor, SharedCopy, ordinal, spawn

__all__ = ["Ordinal", "SerialExecutor", "SharedCopy", "ordinal", "spawn"]
