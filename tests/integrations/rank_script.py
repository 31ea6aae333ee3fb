"""What the ranks of ``test_ranks`` do: checkpoints of loaders whose ranks have orders, or claims, of their own.

``python -m tests.integrations.rank_script FOLDER RANK WORLD_SIZE SCENARIO...``
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from reading_services import DistributedReadingService, OrdinalReadingService
from tests.services.rank_script import TIMEOUT_S, main
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper


def _as_lists(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


def own_orders() -> Any:
    """A part of the data for each rank, in an order of its own: (what follows the save, what the loaded one has)."""
    from torch.distributed import checkpoint as dcp

    from torchpipe.integrations.dcp import SavedLoader

    rank, ranks = dist.get_rank(), dist.get_world_size()

    def made() -> SavedLoader[Any]:
        torch.manual_seed(rank)
        return SavedLoader(DataLoader(list(range(rank, 16, ranks)), 2, shuffle=True))

    loader = made()
    stream = iter(loader)
    before = _as_lists([next(stream), next(stream)])
    folder = Path(os.environ["RANKS_SHARED"]) / "own_orders"
    dcp.save({"data": loader}, checkpoint_id=folder)
    again = made()
    dcp.load({"data": again}, checkpoint_id=folder)
    return [before, _as_lists(stream), _as_lists(again)]


def own_orders_of_rank_0() -> Any:
    """As ``own_orders``; the state is the one that rank 0 has, as trainers save it."""
    from torchpipe.integrations._handed import Counted

    rank, ranks = dist.get_rank(), dist.get_world_size()

    def made() -> Counted[Any]:
        torch.manual_seed(rank)
        return Counted(DataLoader(list(range(rank, 16, ranks)), 2, shuffle=True))

    loader = made()
    stream = iter(loader)
    before = _as_lists([next(stream), next(stream)])
    saved = [loader.state_dict()]
    dist.broadcast_object_list(saved)
    again = made()
    again.load_state_dict(saved[0])
    return [before, _as_lists(stream), _as_lists(again)]


def open_claims() -> Any:
    """For each kind of loader, saved by each rank and by rank 0: (all numbers, those given again, those after them)."""
    from torch.distributed import checkpoint as dcp

    from torchpipe.integrations.dcp import SavedLoader

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
                folder = Path(os.environ["RANKS_SHARED"]) / f"claims {name}"
                dcp.save({"data": saved}, checkpoint_id=folder)
                dcp.load({"data": again}, checkpoint_id=folder)
            else:
                state = [super(SavedLoader, saved).state_dict()]
                dist.broadcast_object_list(state)
                super(SavedLoader, again).load_state_dict(state[0])
            found.append([name, way, whole, [[claim.ordinal, int(claim.item)] for claim in claims]])
    told = []
    for loader in (
        DataLoader(list(range(16)), 1, distributed=True),
        DataLoader(graph := IterableWrapper(range(16)).sharding_filter(), 1),
        DataLoader2(graph, reading_service=DistributedReadingService(TIMEOUT_S)),
    ):
        try:
            loader.claims()
        except ValueError as error:
            told.append(str(error))
    return [found, told]


if __name__ == "__main__":
    main(globals())
