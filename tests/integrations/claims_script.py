"""What one rank does in the tests of claims on several: ``python -m tests.integrations.claims_script FOLDER RANK``.

Joins a gloo group of two ranks through a file, and writes what came of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.utils.data import DistributedSampler

from reading_services import DistributedReadingService, OrdinalReadingService
from tests.services.rank_script import TIMEOUT_S, end_together
from torchpipe import DataLoader, DataLoader2
from torchpipe.integrations.dcp import SavedLoader
from torchpipe.iter import IterableWrapper

RANKS = 2


def open_claims(folder: Path) -> list[Any]:
    """For each kind of loader, saved by each rank and by rank 0: (all numbers, those given again, those after them)."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    kinds: dict[str, Callable[[], Any]] = {
        "own orders": lambda: DataLoader(list(range(rank, 16, ranks)), None, shuffle=True),
        "sampler": lambda: DataLoader(range(16), 1, sampler=DistributedSampler(range(16), ranks, rank)),  # type: ignore[arg-type]
        "shards": lambda: DataLoader2(
            IterableWrapper(range(16)).shuffle().sharding_filter(),
            reading_service=OrdinalReadingService(3, rank, ranks, total_shards=4),
        ),
    }
    found = []
    for name, make in kinds.items():
        torch.manual_seed(rank)
        whole = [int(item) for item in make()]
        for way in ("dcp", "rank 0")[: 1 if name == "shards" else 2]:  # ordinals do not talk
            torch.manual_seed(rank)
            saved = SavedLoader(make())
            claims = saved.loader.claims(ahead=8)
            for claim in islice(claims, 4 + rank):
                if claim.ordinal % 3 != rank:
                    claim.done()
            torch.manual_seed(9 + rank)
            again = SavedLoader(make())
            claims = again.loader.claims(ahead=20)
            if way == "dcp":
                dcp.save({"data": saved}, checkpoint_id=folder / name)
                dcp.load({"data": again}, checkpoint_id=folder / name)
            else:
                state = [super(SavedLoader, saved).state_dict()]
                dist.broadcast_object_list(state)
                super(SavedLoader, again).load_state_dict(state[0])
            found.append([name, way, whole, [[claim.ordinal, int(claim.item)] for claim in claims]])
    return found


def loaders_that_wait() -> list[Any]:
    """Loaders whose ranks begin epochs together."""
    graph = IterableWrapper(range(16)).sharding_filter()
    return [
        DataLoader(list(range(16)), 1, distributed=True),
        DataLoader(graph, 1),
        DataLoader2(graph, reading_service=DistributedReadingService(TIMEOUT_S)),
    ]


def refused(loaders: list[Any]) -> list[str]:
    """What they say."""
    told = []
    for loader in loaders:
        try:
            loader.claims()
        except ValueError as error:
            told.append(str(error))
    return told


def main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{folder / 'store'}", timedelta(seconds=TIMEOUT_S), rank=rank, world_size=RANKS
    )
    loaders = loaders_that_wait()  # until the end: a rank that lets go of its connection breaks one that still connects
    (folder / f"{rank}.json").write_text(json.dumps([open_claims(folder), refused(loaders)]))
    end_together(folder, rank, RANKS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
