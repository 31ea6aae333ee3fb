"""torch_xla's ``MpDeviceLoader`` at its defaults: its own threads read the source and move the batches. For P8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch_xla
from torch_xla.distributed.parallel_loader import MpDeviceLoader

__all__ = ["Loader"]


class Loader:
    def __init__(self, source: Any) -> None:
        self.loader: Any = MpDeviceLoader(source, torch_xla.device())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def close(self) -> None:
        self.loader = None
