"""A rank of a job: its part of the stream from workers of one kind. Prints the items, as numbers, and where it stopped.

python -m tests.actors.rank_script KIND ADDRESS FOLDER STEPS     (RANK, WORLD_SIZE, MASTER_ADDR and so on are given)
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from reading_services import (
    DistributedReadingService,
    MultiProcessingReadingService,
    RayReadingService,
    RayWorkers,
    SequentialReadingService,
)
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper


def graph() -> Any:
    return IterableWrapper(range(120)).shuffle(buffer_size=20).sharding_filter().map(str)


def main(kind: str, address: str, folder: Path, steps: int) -> None:
    """With a state in the folder, go on from it; stop after ``steps`` items (0: at the end), and leave a state."""
    dist.init_process_group("gloo")
    workers: Any = MultiProcessingReadingService(1)
    if kind == "ray":
        import ray

        ray.init(address=address, log_to_driver=False, logging_level="error")
        workers = RayReadingService(1, worker_method=RayWorkers(num_cpus=0.5))
    service = SequentialReadingService(DistributedReadingService(total_shards=4, states="all"), workers)
    with DataLoader2(graph(), reading_service=service) as loader:
        loader.seed(5)
        if (folder / "state").exists():
            loader.load_state_dict(pickle.loads((folder / "state").read_bytes()))
        items = []
        for item in loader:
            items.append(item)
            if len(items) == steps:
                break
        state = loader.state_dict()
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, items)
        dist.barrier()
        if dist.get_rank() == 0:
            (folder / "state").write_bytes(pickle.dumps(state))
            print(repr(gathered), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
