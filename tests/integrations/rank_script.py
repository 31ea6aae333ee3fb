"""What the ranks of ``test_ranks`` do: checkpoints of loaders whose ranks have orders of their own.

``python -m tests.integrations.rank_script FOLDER RANK WORLD_SIZE SCENARIO...``
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.services.rank_script import main
from torchpipe import DataLoader


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


if __name__ == "__main__":
    main(globals())
