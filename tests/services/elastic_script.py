"""A training that torchrun starts, and starts again with other numbers of ranks: ``torchrun ... elastic_script.py``.

Each start is a *segment*. It goes on from the checkpoint, of which every second step makes a new one, notes what each
step has had, and, where its plan says so, one of its ranks is killed in the midst of things.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from reading_services import DistributedReadingService, MultiProcessingReadingService, SequentialReadingService
from torchpipe import DataLoader, DataLoader2
from torchpipe.testing.services import sample_graph

TOTAL = 4
SAVE_EVERY = 2
EPOCHS = 2


def elastic_graph() -> Any:
    return sample_graph(120)


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> int:
        return index * index


def elastic_loader() -> DataLoader[int]:
    return DataLoader(
        Squares(), batch_size=2, shuffle=True, distributed=True, generator=torch.Generator().manual_seed(3)
    )


def main(folder: Path, name: str, kills: dict[str, tuple[int, int]]) -> None:
    """``kills``: of each start, which rank is killed after how many steps."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, start = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    segment = f"{name}.{start}"
    victim, last = kills.get(start, (-1, -1))
    service = DistributedReadingService(20, total_shards=TOTAL, states="all")
    graph: DataLoader2[Any] = DataLoader2(
        elastic_graph(), reading_service=SequentialReadingService(service, MultiProcessingReadingService(1, "fork"))
    )
    graph.seed(7)
    batches = elastic_loader()
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        graph.load_state_dict(saved["graph"])
        batches.load_state_dict(saved["batches"])
    steps = 0
    with open(folder / f"seen.{segment}.{rank}", "w") as seen, graph, batches:
        while graph.epoch < EPOCHS:
            for item, batch in zip_longest(graph, batches):
                noted = [item and repr(item), [] if batch is None else batch.tolist()]
                print(json.dumps(noted), file=seen, flush=True)
                steps += 1
                if rank == victim and steps == last:
                    os.kill(os.getpid(), signal.SIGKILL)
                if steps % SAVE_EVERY == 0:
                    state = {"graph": graph.state_dict(), "batches": batches.state_dict(), "by": [segment, steps]}
                    if rank == 0:
                        torch.save(state, folder / "new.pt")
                        os.replace(folder / "new.pt", checkpoint)
                        (folder / f"saved.{segment}").write_text(str(steps))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
