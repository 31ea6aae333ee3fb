"""P14f: as P14, but the workers are started with forkserver.

Runs in the measured process.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from benchmarks.workloads import p14_turn_around

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P14f as P14, workers started with forkserver"
UNIT = p14_turn_around.UNIT
PEERS = p14_turn_around.PEERS


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    return p14_turn_around.run(peer, seconds, start_method="forkserver")


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p14f"])
