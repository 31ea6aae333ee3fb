"""P22: P3's images of 4.8 MB a batch through Ray: RayReadingService beside Ray Data, and worker processes.

Runs in the measured process.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from benchmarks.workloads import p3_images

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P22 images of 4.8 MB a batch from Ray workers"
UNIT = p3_images.UNIT
PEERS = ["ray", "ray_data", "torchpipe"]


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    return p3_images.run(peer, seconds)


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p22"])
