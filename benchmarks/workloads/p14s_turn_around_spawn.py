"""P14s: as P14, but the workers are started with spawn.

Runs in the measured process.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from benchmarks.workloads import p14_turn_around

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P14s as P14, workers started with spawn"
UNIT = p14_turn_around.UNIT
PEERS = p14_turn_around.PEERS


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    return p14_turn_around.run(peer, seconds, start_method="spawn")


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p14s"])
