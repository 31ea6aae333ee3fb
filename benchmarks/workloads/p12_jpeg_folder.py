"""P12: the JPEG files of P4 as a map-style dataset, through loaders that are called as torch's ``DataLoader`` is.

Runs in the measured process.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from benchmarks.workloads import p4_jpeg

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P12 map-style folder of JPEG files, decoded in the workers, batch 32"
UNIT = p4_jpeg.UNIT
PEERS = ["dataloader", "torch", "stateful", "spdl_dataloader"]


def run(peer: ModuleType, seconds: float, *, workers: int = 2, least_s: float = 2.0) -> dict[str, Any]:
    return p4_jpeg.run(peer, seconds, workers=workers, least_s=least_s)


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p12"])
