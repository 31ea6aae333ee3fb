"""P16: worker threads beside worker processes over P12's map-style folder of JPEG files, batch 32.

Runs in the measured process. Its data, and how each batch is checked, are P4's.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from benchmarks.workloads import p4_jpeg

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P16 worker threads beside worker processes, map-style folder of JPEG files, batch 32"
UNIT = p4_jpeg.UNIT
PEERS = ["threads", "dataloader", "torch"]


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    return p4_jpeg.run(peer, seconds)


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p16"])
