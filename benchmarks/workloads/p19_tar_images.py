"""P19: P4's JPEG files out of tar shards, decoded in the workers, batch 32. Runs in the measured process."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from benchmarks.workloads import p4_jpeg

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P19 JPEG files out of tar shards, decoded in the workers, batch 32"
UNIT = p4_jpeg.UNIT
PEERS = ["shards", "webdataset"]


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    return p4_jpeg.run(peer, seconds)


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p19"])
