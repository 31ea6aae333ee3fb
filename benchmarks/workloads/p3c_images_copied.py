"""P3c: as P3, but the consumer copies each batch once: what a transfer to a device costs at least.

Runs in the measured process.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import torch

from benchmarks.workloads import p3_images

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P3c images, each batch copied once by the consumer"
UNIT = p3_images.UNIT
PEERS = ["torchpipe", "in_process", "torch", "spdl", "spdl_arena"]  # those that P3 leaves in doubt


class _Copier:
    """Copies into one buffer of its own, as an input buffer on a device would be filled."""

    def __init__(self) -> None:
        self.buffer = np.zeros((p3_images.BATCH, *p3_images.SHAPE), dtype=np.uint8)

    def __call__(self, batch: Any) -> None:
        np.copyto(self.buffer, batch.numpy() if isinstance(batch, torch.Tensor) else batch)


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    return p3_images.run(peer, seconds, consume=_Copier())


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p3c"])
