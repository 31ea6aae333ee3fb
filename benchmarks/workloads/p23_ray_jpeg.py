"""P23: P4's JPEG files through Ray: RayReadingService beside Ray Data, and worker processes.

Runs in the measured process.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from benchmarks.workloads import p4_jpeg

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P23 JPEG files from Ray workers"
UNIT = p4_jpeg.UNIT
PEERS = ["ray", "ray_data", "torchpipe"]


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    return p4_jpeg.run(peer, seconds)


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p23"])
