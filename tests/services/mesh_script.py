"""What one process does in ``test_meshes``: ``python -m tests.services.mesh_script FOLDER RANK DP TP SCENARIO...``.

A mesh of dp x tp processes over gloo. Every process has other random states: what peers have in common, they have by
their place in the mesh.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from reading_services import DistributedReadingService, MultiProcessingReadingService, SequentialReadingService
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper

SAMPLES = 48
TIMEOUT_S = 60.0


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.cat([torch.tensor([float(index)]), torch.rand(1)])  # augmented: peers need the same random states


def _augmented(index: int) -> torch.Tensor:
    return Numbers()[index]


def graph() -> Any:
    return IterableWrapper(range(SAMPLES)).shuffle().sharding_filter().map(_augmented).batch(2).collate()


def _lists(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


def _two_epochs(loader: Any) -> list[list[Any]]:
    with loader:
        return [_lists(loader) for _ in range(2)]


def batches(mesh: Any) -> Any:
    """Of a dataset, with and without workers, among a mesh's dimension and a group."""
    generator = torch.Generator().manual_seed(3)
    return [
        _two_epochs(DataLoader(Numbers(), 2, True, num_workers=1, distributed=mesh["dp"])),
        _two_epochs(DataLoader(Numbers(), 2, True, distributed=mesh.get_group("dp"))),
        _two_epochs(DataLoader(Numbers(), 2, True, distributed=mesh["dp"], generator=generator)),
    ]


def graphs(mesh: Any) -> Any:
    workers = SequentialReadingService(
        DistributedReadingService(mesh["dp"], total_shards=4), MultiProcessingReadingService(1, "fork")
    )
    return [
        _two_epochs(DataLoader2(graph(), reading_service=service))
        for service in (
            DistributedReadingService(mesh["dp"]),
            DistributedReadingService(group=mesh.get_group("dp"), total_shards=4, uneven="pad"),
            workers,
        )
    ]


def foretold(mesh: Any) -> Any:
    """A state from before the first item, loaded into another loader, is of the run that begins."""
    made = DataLoader2(graph(), reading_service=DistributedReadingService(mesh["dp"]))
    with made:
        state = made.state_dict()
        first = _lists(made)
    with DataLoader2.from_state(state, graph(), DistributedReadingService(mesh["dp"])) as again:
        return _lists(again) == first


def _error_of(act: Callable[[], Any]) -> str:
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def refused(mesh: Any) -> Any:
    """What names no ranks, by the loader and by the service."""
    others = dist.new_group([0])  # of which rank 0 alone is a member
    found = {}
    for name, given in {"mesh": mesh, "number": 1, "text": "dp", "none": None, "others": others}.items():
        found[name] = [
            _error_of(lambda given=given: DataLoader(Numbers(), distributed=given)),
            _error_of(lambda given=given: DataLoader2(graph(), reading_service=DistributedReadingService(given)))
            if name not in ("number", "none")
            else "",
        ]
    sampler = DataLoader(Numbers(), distributed=mesh["dp"]).sampler
    found["sampler"] = [_error_of(lambda: DataLoader(Numbers(), sampler=sampler, distributed=mesh["tp"])), ""]
    made_again = DataLoader(Numbers(), sampler=sampler, distributed=True)
    return [found, made_again.sampler is sampler]


def main(folder: Path, rank: int, dp: int, tp: int, scenarios: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / f'store {dp} {tp}'}",
        rank=rank,
        world_size=dp * tp,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    mesh = dist.init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    for name in scenarios:
        torch.manual_seed(os.getpid())
        (folder / f"{name}.{dp}x{tp}.{rank}.json").write_text(json.dumps(globals()[name](mesh)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]), sys.argv[5:])  # type: ignore[arg-type]
