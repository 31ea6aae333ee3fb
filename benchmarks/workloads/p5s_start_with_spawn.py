"""P5s: as P5, but the workers are started with spawn: new interpreters, which import their libraries first.

Runs in the measured process.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from benchmarks.workloads import p5_start_and_close

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P5s as P5, workers started with spawn"
UNIT = p5_start_and_close.UNIT
PEERS = ["torchpipe", "torch", "spdl", "grain", "mprs09"]


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    return p5_start_and_close.run(peer, seconds, start_method="spawn")


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p5s"])
