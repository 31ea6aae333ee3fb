"""torch's ``DataLoader``, and ``tensor.to(device)`` in the loop. For P8c."""

from __future__ import annotations

from benchmarks.peers import cuda_pinned

__all__ = ["Loader"]


class Loader(cuda_pinned.Loader):
    pinned = False
