"""What one process does in ``test_meshes``: ``python -m tests.integrations.mesh_script FOLDER RANK DP TP SCENARIO...``.

A scenario is the name of a function here, and, behind colons, its arguments.

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
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import Dataset, DistributedSampler

from reading_services import (
    DistributedReadingService,
    MultiProcessingReadingService,
    OrdinalReadingService,
    SequentialReadingService,
)
from torchpipe import DataLoader, DataLoader2
from torchpipe.integrations._ranks import check_position, group_of_position
from torchpipe.integrations.dcp import SavedLoader
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


def kept(mesh: Any) -> Any:
    """A shard's key is missing on one data rank, and keys are of different steps: what each is told."""
    data: SavedLoader[Any] = SavedLoader(_loader_of("graph", mesh))
    stream, saved = iter(data), []
    for _ in range(2):
        next(stream)
        saved.append(data.state_dict())
    second = mesh.get_local_rank("dp") == 1
    missing = {name: value for name, value in saved[0].items() if not second or name != f"shard 1 of {SHARDS}"}
    errors = [_error_of(lambda: data.load_state_dict(missing)), _error_of(lambda: data.load_state_dict(saved[second]))]
    data.load_state_dict(saved[0])
    first = _lists(data)
    data.shutdown()
    return [[*saved[0]], errors, first]


def places(mesh: Any) -> Any:
    """A trainer that says dp_rank and dp_world_size, and no mesh: the group it makes, and what fits it."""
    rank, ranks = mesh.get_local_rank("dp"), mesh["dp"].size()
    group = group_of_position(rank, ranks)
    fitting = {
        "group": DataLoader2(graph(), reading_service=DistributedReadingService(group)),
        "ordinal": DataLoader2(graph(), reading_service=OrdinalReadingService(0, rank, ranks)),
        "dealt": DataLoader(Numbers(), distributed=group),
        "sampler": DataLoader(Numbers(), sampler=DistributedSampler(Numbers(), ranks, rank)),  # type: ignore[arg-type]
        "unknown": DataLoader(Numbers()),
    }
    others = {
        "service": DataLoader2(graph(), reading_service=DistributedReadingService()),
        "dealt": DataLoader(Numbers(), distributed=True),
        "torch's way": DataLoader(graph()),
    }
    errors = [
        [_error_of(lambda loader=loader: check_position(loader, rank, ranks)) for loader in loaders.values()]
        for loaders in (fitting, others)
    ]
    unequal = _error_of(lambda: group_of_position(min(dist.get_rank(), 2), 3))
    return [dist.get_process_group_ranks(group), *errors, unequal]


SHARDS = 12


def _loader_of(kind: str, mesh: Any) -> Any:
    """Each gives 24 batches of 2 in an epoch, whatever the number of ranks."""
    if kind == "batches":
        return DataLoader(Numbers(), 2, True, num_workers=1, distributed=mesh["dp"])
    if kind == "ordinal":
        ranks: Any = OrdinalReadingService(7, mesh.get_local_rank("dp"), mesh["dp"].size(), total_shards=SHARDS)
    else:
        ranks = DistributedReadingService(mesh["dp"], total_shards=SHARDS)
    workers = MultiProcessingReadingService(1, "fork", device="cpu" if kind == "device" else None)
    return DataLoader2(graph(), reading_service=SequentialReadingService(ranks, workers))


def _norm(model: Any) -> float:
    return float(sum(value.full_tensor().square().sum() for value in model.parameters()))


def train(mesh: Any, kind: str, use: str, steps: str) -> Any:
    """FSDP2 and tensor parallelism, from the newest checkpoint on: steps, a checkpoint, and a step that is lost;
    or, for 0 steps, the rest of the epoch."""
    place = Path(os.environ["MESH_FOLDER"]) / kind
    written = sorted(place.glob("*/.metadata"), key=lambda path: path.stat().st_mtime_ns)
    torch.manual_seed(0)  # tensor parallelism begins from equal weights
    model: Any = nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 24))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    torch.manual_seed(os.getpid())
    data: SavedLoader[Any] = SavedLoader(_loader_of(kind, mesh))
    result: dict[str, Any] = {"batches": [], "norms": []}
    if written:
        weights, moments = get_state_dict(model, optimizer)
        saved = {"model": weights, "optimizer": moments, "data": data}
        dcp.load(saved, checkpoint_id=written[-1].parent)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        result["norms"].append(_norm(model))
        result["epoch"] = data.epoch
    pending: Any = None
    for batch in data:
        (model(batch).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if pending is not None:
            pending.result()
        if steps != "0" and len(result["batches"]) == int(steps):
            break  # after the checkpoint: lost
        result["batches"].append(batch.tolist())
        if len(result["batches"]) == int(steps):
            weights, moments = get_state_dict(model, optimizer)
            saved = {"model": weights, "optimizer": moments, "data": data}
            target = place / f"{len(written)}"
            result["norms"].append(_norm(model))
            if use == "save":
                dcp.save(saved, checkpoint_id=target)
            else:
                pending = dcp.async_save(saved, checkpoint_id=target, process_group=dist.new_group(backend="gloo"))
    data.shutdown()
    return result


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
        function, *arguments = name.split(":")
        result = globals()[function](mesh, *arguments)
        (folder / f"{name}.{dp}x{tp}.{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]), sys.argv[5:])  # type: ignore[arg-type]
