"""P21: P2's small samples through Ray: RayReadingService beside Ray Data, and worker processes.

Runs in the measured process.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from benchmarks.workloads import p2_dict_batches

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P21 small samples from Ray workers"
UNIT = p2_dict_batches.UNIT
PEERS = ["ray", "ray_data", "torchpipe"]


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    return p2_dict_batches.run(peer, seconds)


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p21"])
