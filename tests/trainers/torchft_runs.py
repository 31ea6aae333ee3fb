"""What the processes of test_torchft.py do: two replica groups of one process each; one dies and comes back."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.data import DistributedSampler

from examples.trainers.killed import BATCH_SIZE, Digits, Journal, digits
from tests.trainers import runs
from torchpipe import DataLoader
from torchpipe.integrations.dcp import SavedLoader

digits()
GROUPS = 2
ALONE = 5  # steps that the survivor makes before the other one comes back
TOGETHER = 10  # steps that the other one makes before it dies


def share(group: int) -> SavedLoader[Any]:
    sampler = DistributedSampler(Digits(), group, GROUPS, group_rank=0, num_replicas=1, seed=runs.SEED)
    generator = torch.Generator().manual_seed(runs.SEED)
    return SavedLoader(DataLoader(Digits(), BATCH_SIZE, sampler=sampler, generator=generator))


def train(folder: str, ranks: int, steps: int) -> None:
    """Rank 0: the lighthouse. Rank 1: a replica. Rank 2: one that is killed, and started again."""
    place, rank = Path(folder), int(os.environ["RANK"])
    torch.set_num_threads(1)
    if rank == 0:
        server = LighthouseServer("127.0.0.1:0", 1, join_timeout_ms=1000, heartbeat_timeout_ms=1000)
        (place / "address.new").write_text(server.address())
        (place / "address.new").rename(place / "address")
        _wait_for(place / "done.0", place / "done.1")
        server.shutdown()
        return
    _wait_for(place / "address")
    group = rank - 1
    if group == 1:
        _wait_for(place / "begun")
        pid = os.fork()
        if not pid:
            replica(place, group, steps, "first")
            os._exit(1)
        os.waitpid(pid, 0)
        _wait_for(place / "alone")
    replica(place, group, steps, "last")
    (place / f"done.{group}").touch()


def replica(place: Path, group: int, steps: int, life: str) -> None:
    """The loop that docs/trainers.md shows, with a journal of what was committed."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.manual_seed(3)
    model, data = runs.model(), share(group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches: Any = None

    def put_back(state: dict[str, Any]) -> None:
        nonlocal batches
        model.load_state_dict(state["model"])
        data.load_state_dict(state["data"])
        batches = None

    manager = Manager(
        ProcessGroupGloo(timeout=timedelta(seconds=20)),
        put_back,
        lambda: {"model": model.state_dict(), "data": data.state_dict()},
        min_replica_size=1,
        use_async_quorum=False,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=(place / "address").read_text(),
        replica_id=f"replica_{group}_",
        hostname="127.0.0.1",
        timeout=timedelta(seconds=20),
    )
    journal = Journal(place / f"journal.{group}.{life}")
    together = alone = 0
    while manager.current_step() < steps:
        if group == 1:
            (place / life).touch()
        elif manager.current_step():
            _wait_for(place / "first")
        if alone == ALONE:
            (place / "alone").touch()
            _wait_for(place / "last")
        manager.start_quorum()  # may put the position of another replica back: only now is a batch taken
        before = data.state_dict()
        batch = None
        while batch is None:
            batches = iter(data) if batches is None else batches
            batch = next(batches, None)
            batches = None if batch is None else batches
        step = manager.current_step()
        if group == 1 and life == "first" and together == TOGETHER:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = nn.functional.cross_entropy(model(batch["pixels"]), batch["labels"])
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            manager.allreduce(parameter.grad).wait()
        if not manager.should_commit():
            data.load_state_dict(before)  # the same batch once more
            batches = None
            continue
        optimizer.step()
        journal.step(step, manager.num_participants(), batch)
        (place / "begun").touch()
        together += manager.num_participants() == GROUPS
        alone += together > 0 and manager.num_participants() == 1
    manager.shutdown()


def _wait_for(*paths: Path) -> None:
    while not all(path.exists() for path in paths):
        time.sleep(0.05)


def shares(folder: str, ranks: int, steps: int) -> None:
    """What each replica is to receive, step by step."""
    torch.set_num_threads(1)
    for group in range(GROUPS):
        journal, step, data = Journal(Path(folder) / f"journal.{group}"), 0, share(group)
        while step < steps:
            for batch in data:
                journal.step(step, 0, batch)
                step += 1
