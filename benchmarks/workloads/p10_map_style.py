"""P10: the samples of P2 from a map-style dataset, through loaders that are called as torch's ``DataLoader`` is.

Runs in the measured process.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from benchmarks.workloads import p2_dict_batches

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P10 map-style dicts of torch tensors, batch 32"
UNIT = p2_dict_batches.UNIT
PEERS = ["dataloader", "torch", "stateful", "spdl_dataloader"]


def run(peer: ModuleType, seconds: float, *, workers: int = 2) -> dict[str, Any]:
    return p2_dict_batches.run(peer, seconds, workers=workers)


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p10"])
