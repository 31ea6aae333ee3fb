"""What the processes of test_torchtitan.py do.

torchtitan's whole Trainer needs an accelerator (it asks for its memory, and waits for its queue). What touches a loader
is torchtitan's own here: the config that builds it, ``Trainer.batch_generator``, and the CheckpointManager.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.trainer import Trainer

from examples.trainers.killed import Journal, digits
from reading_services import DistributedReadingService
from tests.trainers import runs
from torchpipe import DataLoader, DataLoader2
from torchpipe.integrations.torchtitan import ExactDataLoader
from torchpipe.iter import IterableWrapper

try:
    from torchtitan.components.checkpointer import CheckpointManager
    from torchtitan.components.data.loader import BaseDataLoader, DataloaderExhaustedError
except ImportError:  # torchtitan 0.3
    from torchtitan.components.checkpoint import CheckpointManager
    from torchtitan.components.dataloader import BaseDataLoader, DataloaderExhaustedError

digits()


class Data(ExactDataLoader):
    @dataclass(kw_only=True, slots=True)
    class Config(ExactDataLoader.Config):
        kind: str = "map"

    def make(self, *, dp_world_size: int, dp_rank: int, local_batch_size: int, **given: Any) -> Any:
        assert given.keys() == {"tokenizer", "seq_len", "snapshot_every_n_steps"}
        assert local_batch_size == runs.BATCH_SIZE
        peers = dist.is_initialized() and dp_world_size < dist.get_world_size()
        group = self.dp_group if peers else None
        return runs.loader_of(self.config.kind, dp_rank, dp_world_size, titan_batch, group)


def titan_batch(batch: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    labels = batch.pop("labels")
    return {"input": batch["pixels"], **batch}, labels


class Loop:
    """As Trainer.train(), without what needs an accelerator."""

    batch_generator = Trainer.batch_generator
    state_dict = Trainer.state_dict
    load_state_dict = Trainer.load_state_dict

    def __init__(
        self, dataloader: BaseDataLoader, folder: Path, ranks: int, parts: int, checkpoint: CheckpointManager.Config
    ) -> None:
        self.step = self.ntokens_seen = 0
        self.batches_of_epoch = runs.batches_of(parts)
        self.metrics_processor = SimpleNamespace(ntokens_since_last_log=0, data_loading_times=[])
        self.dataloader = dataloader
        model = runs.model()
        self.model: Any = DistributedDataParallel(model) if ranks > 1 else model
        self.optimizers = default_adamw(lr=0.01).build(model_parts=[model])
        schedulers = LRSchedulersContainer.Config().build(optimizers=self.optimizers, training_steps=200)
        self.checkpointer = checkpoint.build(
            dataloader=dataloader,
            model_parts=[model],
            optimizers=self.optimizers,
            lr_schedulers=schedulers,
            states={"train_state": self},
            sd_adapter=None,
            base_folder=str(folder),
        )

    def train(self, journal: Journal, accumulate: int) -> None:
        self.checkpointer.load(step=-1)
        journal.start(self.step * accumulate)
        batches = self.batch_generator(self.dataloader)
        while True:
            self.step += 1
            try:
                group = [next(batches) for _ in range(accumulate)]
            except DataloaderExhaustedError:
                break
            for number, (inputs, labels) in enumerate(group, start=(self.step - 1) * accumulate):
                self.checkpointer.maybe_wait_for_saving()
                epoch = number // self.batches_of_epoch
                journal.step(number, epoch, {"pixels": inputs["input"], "identity": inputs["identity"]})
                nn.functional.cross_entropy(self.model(inputs["input"]), labels).backward()
                self.ntokens_seen += labels.numel()
            self.checkpointer.maybe_wait_for_staging()
            self.optimizers.step()
            self.optimizers.zero_grad()
            self.checkpointer.save(self.step)
        self.checkpointer.close()


def train(
    folder: str,
    ranks: int,
    kind: str,
    epochs: int,
    kill_at: int | None = None,
    accumulate: int = 1,
    interval: int = 10,
    async_mode: str = "disabled",
    tp: int = 1,
) -> None:
    """Checkpoints every ``interval`` steps. Every process has other seeds; ``tp`` of them read the same data."""
    rank, place = int(os.environ.get("RANK", "0")), Path(folder)
    torch.set_num_threads(1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(20_000 + os.getpid() % 20_000))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(os.getppid() if (place / "checkpoint").exists() else 3)
    config = Data.Config(kind=kind, epochs=epochs)
    dataloader = config.build(
        dp_world_size=ranks // tp,
        dp_rank=rank // tp,
        tokenizer=None,
        seq_len=784,
        local_batch_size=runs.BATCH_SIZE,
        snapshot_every_n_steps=interval,
    )
    checkpoint = CheckpointManager.Config(enable=True, interval=interval, async_mode=async_mode, keep_latest_k=3)
    Loop(dataloader, place, ranks, ranks // tp, checkpoint).train(
        Journal(place / f"journal.{rank}", kill_at), accumulate
    )
    dataloader.close()
    dist.destroy_process_group()


class Tokenizer:
    """As torchtitan's: it holds one that goes to workers, and itself does not."""

    eos_id = 0
    tokenizer: Any

    def __init__(self) -> None:
        self.tokenizer = SimpleNamespace(encode=_bytes_of)

    def __reduce__(self) -> Any:
        raise TypeError("it has a template, which cannot be pickled")


def _bytes_of(text: str) -> SimpleNamespace:
    return SimpleNamespace(ids=list(text.encode()))


def flat(folder: str, ranks: int, steps: int, kill_at: int | None = None) -> None:
    """The class of docs/trainers.md, given what main gives: 4 microbatches in a step, every third is saved."""
    rank, place = int(os.environ.get("RANK", "0")), Path(folder)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(20_000 + os.getpid() % 20_000))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    sys.path.insert(0, folder)
    config = import_module("shown").Text.Config(files=f"{folder}/text.jsonl", shards=4, piece_bytes=512)
    given = {"tokenizer": Tokenizer(), "max_context_length": 32, "num_tokens_per_batch": 64}
    loader = config.build(dp_world_size=ranks, dp_rank=rank, **given)
    checkpoint = CheckpointManager.Config(enable=True, interval=3, keep_latest_k=2)
    loop = Loop(loader, place, 1, ranks, checkpoint)  # the model, which is not trained here, is each rank's own
    loop.checkpointer.load(step=-1)
    batches = loop.batch_generator(loader)
    while loop.step < steps:
        loop.step += 1
        for number in range(4 // ranks):
            inputs, labels = next(batches)
            assert {tuple(part.shape) for part in (*inputs.values(), labels)} == {(64,)}
            seen = [loop.step, inputs["input"].tolist(), inputs["positions"].tolist(), labels.tolist()]
            with (place / f"seen.{rank}").open("a") as file:
                file.write(json.dumps(seen) + "\n")
            if loop.step == kill_at and number == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        loop.checkpointer.save(loop.step)
    loop.checkpointer.close()
    loader.close()
    dist.destroy_process_group()


def contract(folder: str, ranks: int) -> None:
    """An end for good, and none; ``{}`` is a valid state."""
    given = {"dp_world_size": 1, "dp_rank": 0, "tokenizer": None, "seq_len": 784, "snapshot_every_n_steps": None}
    for epochs in (2, None):
        config = Data.Config(kind="graph", epochs=epochs)
        dataloader = config.build(**given, local_batch_size=runs.BATCH_SIZE)
        dataloader.load_state_dict({})
        count = 0
        for _ in dataloader:
            count += 1
            if count == 120:
                break
        assert count == (100 if epochs == 2 else 120)
        assert list(dataloader.state_dict()) == ["state"]
        dataloader.close()


class AmongAll(ExactDataLoader):
    """Divides among all processes: by a service, or as torch's loader divides a graph."""

    @dataclass(kw_only=True, slots=True)
    class Config(ExactDataLoader.Config):
        service: bool = True

    def make(self, **given: Any) -> Any:
        graph = IterableWrapper(range(8)).sharding_filter()
        if self.config.service:
            return DataLoader2(graph, reading_service=DistributedReadingService())
        return DataLoader(graph, 2)


def refused(folder: str, ranks: int) -> None:
    """Two processes that read the same data, and loaders that divide it between them."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    for service in (True, False):
        dataloader = AmongAll.Config(service=service).build(dp_world_size=1, dp_rank=0)
        try:
            next(iter(dataloader))
        except ValueError as error:
            assert f"dp_rank=0, but the loader is rank {rank} of 2" in str(error)
        else:
            raise AssertionError("it was not refused")
    dist.destroy_process_group()
