"""What the processes of test_ray.py do: Ray Train runs a loop of one's own in workers, and starts them again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

from examples.trainers.killed import Journal
from tests.trainers import runs
from torchpipe import own_random_states
from torchpipe.integrations.dcp import SavedLoader


def loop(config: dict[str, Any]) -> None:
    """In each worker, and once more in new ones after a worker has died: from the last checkpoint."""
    torch.set_num_threads(1)
    own_random_states()  # it is no main thread, and makes items itself
    context = ray.train.get_context()
    rank, ranks = context.get_world_rank(), context.get_world_size()
    place, step = Path(config["folder"]), 0
    data: SavedLoader[Any] = SavedLoader(runs.loader_of(config["kind"], rank, ranks))
    model = prepare_model(runs.model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder) / "state.pt", weights_only=True)
        data.load_state_dict(saved["data"])
        model.load_state_dict(saved["model"])
        step = saved["step"]
    kills = [kill_at for kill_at in config["kills"] if not (place / f"killed.{rank}.{kill_at}").exists()]
    kill_at = kills[0] if kills else None
    journal = Journal(place / f"journal.{rank}", kill_at)
    journal.start(step)
    for epoch in range(data.epoch, config["epochs"]):
        for batch in data:
            if step == kill_at:
                ray.train.get_all_reported_checkpoints()  # waits until they count: reports are noted some time later
                (place / f"killed.{rank}.{kill_at}").touch()
            journal.step(step, epoch, batch)
            nn.functional.cross_entropy(model(batch["pixels"]), batch["labels"]).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 5 == 0:
                report({"data": data.state_dict(), "model": model.state_dict(), "step": step}, rank)
    data.shutdown()


def report(state: dict[str, Any], rank: int) -> None:
    """All ranks report; rank 0's checkpoint is the one that is kept."""
    if rank:
        ray.train.report({})
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, Path(folder) / "state.pt")
        ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def train(folder: str, ranks: int, kind: str, epochs: int, kills: list[int], workers: int) -> None:
    """A run of Ray Train, in which every worker kills itself before each step of ``kills``."""
    os.environ["RAY_AUTH_MODE"] = "disabled"  # it would write a token into the home folder
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as short:  # its sockets have paths of limited length
        ray.init(
            num_cpus=workers + (1 if kind == "actors" else 0),
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=short,
        )
        try:
            _fit(folder, kind, epochs, kills, workers)
        finally:
            ray.shutdown()


def _fit(folder: str, kind: str, epochs: int, kills: list[int], workers: int) -> None:
    trainer = TorchTrainer(
        loop,
        train_loop_config={"folder": folder, "kind": kind, "epochs": epochs, "kills": kills},
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
        run_config=ray.train.RunConfig(
            storage_path=folder, failure_config=ray.train.FailureConfig(max_failures=2 * len(kills))
        ),
    )
    trainer.fit()


def alone(folder: str, ranks: int, kind: str, epochs: int, workers: int) -> None:
    """What each rank is to receive, without Ray."""
    torch.set_num_threads(1)
    for rank in range(workers):
        loader, journal, step = runs.loader_of(kind, rank, workers), Journal(Path(folder) / f"journal.{rank}"), 0
        for epoch in range(epochs):
            loader.set_epoch(epoch)
            for batch in loader:
                journal.step(step, epoch, batch)
                step += 1
