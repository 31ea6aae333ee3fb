"""Run by test_spmd.py in a process with four XLA devices: ``layouts`` and ``train FOLDER [KILL_AT]`` under SPMD,
``other_device`` and ``syncs`` without it."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2
from torchpipe.device import DeviceOptions, Sharding
from torchpipe.iter import IterableWrapper
from torchpipe.testing import FakeBackend
from torchpipe.xla.drop_in import MpDeviceLoader

EPOCHS = 2
LENGTH = 64
BATCH = 8


class Pair(NamedTuple):
    image: Any
    label: Any


class Sequence(list[Any]):
    def __init__(self, items: list[Any], extra: Any) -> None:
        super().__init__(items)
        self.extra = extra


def devices() -> tuple[Any, Any, Any]:
    """A mesh of one axis, one of two, and torch_xla's module of specs."""
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime

    runtime: Any = torch_xla.runtime
    runtime.use_spmd()
    return xs.Mesh(np.arange(4), (4,), ("data",)), xs.Mesh(np.arange(4), (2, 2), ("data", "model")), xs


def move(batch: Any, tree: Any) -> Any:
    return next(iter(IterableWrapper([batch]).to_device("xla", input_sharding=tree)))


def spec_of(tensor: Any) -> str:
    import torch_xla

    return str(vars(torch_xla)["_XLAC"]._get_xla_sharding_spec(tensor))


def error_of(step: Callable[[], Any]) -> str:
    try:
        step()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def layouts() -> dict[str, Any]:
    line, square, xs = devices()
    image, label = torch.arange(32.0).reshape(8, 4), torch.arange(8)
    rows = xs.ShardingSpec(line, ("data", None))
    tree = {"pair": Pair(Sharding(square, ("data", "model")), Sharding(square, ("data",))), "scale": None}
    nested = move({"pair": Pair(image, label), "names": ["a", None], "scale": torch.tensor(2.0)}, tree)
    both = {"image": Sharding(line, ("data", None)), "label": rows}
    minibatch = Sharding(square, (("data", "model"), None), minibatch=True)
    uneven = move(torch.arange(14.0).reshape(7, 2), rows)
    said: list[str] = []
    logging.getLogger("torchpipe").addFilter(lambda record: not said.append(record.getMessage()))
    return {
        "labels": [[spec_of(item) for item in move((image, label), rows)] for _ in range(2)],
        "labels of the drop-in": [[spec_of(item) for item in batch] for batch in drop_in((image, label), rows)],
        "said": said,
        "nested": [spec_of(nested["pair"].image), spec_of(nested["pair"].label), spec_of(nested["scale"])],
        "nested values": [nested["pair"].image.cpu().tolist(), nested["pair"].label.cpu().tolist(), nested["names"]],
        "nested type": type(nested["pair"]).__name__,
        "one spec": [spec_of(item) for item in move([image, image + 1], rows)],
        "names by key": spec_of(move(Pair(image, 0), {"image": rows}).image),
        "minibatch": [spec_of(move(image, minibatch)), list(move(image, minibatch).shape)],
        "uneven": [spec_of(uneven), uneven.cpu().flatten().tolist()],
        "scalar": spec_of(move([torch.tensor(1.0)], [Sharding(line, ())])[0]),
        "drop-in": [[spec_of(item) for item in batch] for batch in drop_in([image, label], [rows, None])],
        "errors": {
            "rank": error_of(lambda: move([image, torch.ones(8, 2, 2)], rows)),
            "rank in a tree": error_of(lambda: move({"image": image, "label": label}, both)),
            "missing": error_of(lambda: move({"image": image, "label": label}, {"image": rows})),
            "missing attribute": error_of(lambda: move(Sequence([image], label), [rows])),
            "too much": error_of(lambda: move({"image": image}, both)),
            "container": error_of(lambda: move({"image": image}, {"image": [rows]})),
            "axis": error_of(lambda: move(image, Sharding(line, ("model", None)))),
            "axis twice": error_of(lambda: move(image, Sharding(square, ("data", "data")))),
            "minibatch rows": error_of(lambda: move(torch.ones(7, 2), Sharding(line, ("data", None), True))),
            "minibatch part": error_of(lambda: move(image, Sharding(square, ("data", None), True))),
            "other device": error_of(lambda: IterableWrapper([image]).to_device(FakeBackend(), input_sharding=rows)),
        },
        "torch_xla": {
            "rank": spec_of(send(xs, label, rows)),
            "labels on two axes": error_of(lambda: send(xs, label, xs.ShardingSpec(square, ("data",)))),
        },
    }


def drop_in(batch: Any, tree: Any) -> list[Any]:
    """Two batches of a drop-in loader, with the device named as in torch_xla's documentation."""
    import torch_xla

    return list(MpDeviceLoader([batch, batch], torch_xla.device(), input_sharding=tree))


def send(xs: Any, tensor: torch.Tensor, spec: Any) -> Any:
    import torch_xla
    import torch_xla.core.xla_model as xm

    return xm.send_cpu_data_to_device([tensor], torch_xla.device(), spec)[0]


def other_device() -> dict[str, Any]:
    """The stage on a device that is not the thread's default one: its work is started and waited for there."""
    import torch_xla
    import torch_xla.debug.metrics

    metrics: Any = torch_xla.debug.metrics
    results, where = [], set()
    executions = []
    graph = IterableWrapper([torch.full((3,), float(number)) for number in range(4)])
    for batch in graph.to_device("xla:2", sync="loader", wait_every=1):
        if results:
            executions.append(int(metrics.metric_data("ExecuteTime")[0]))
        results.append(batch * 2)
        where.add(str(batch.device))
    executions.append(int(metrics.metric_data("ExecuteTime")[0]))
    return {
        "default": str(torch_xla.device()),
        "where": sorted(where),
        "executions": executions,
        "values": [float(result.cpu()[0]) for result in results],  # a slice on the device would be work
        "executions after": int(metrics.metric_data("ExecuteTime")[0]),
    }


def sample(number: int) -> dict[str, Any]:
    features = torch.tensor([number % 7, number % 5, number % 3, 1.0])
    return {"x": features, "y": torch.tensor(features.sum() / 10), "id": number}


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: torch.stack([item[name] for item in samples]) for name in ("x", "y")} | {
        "ids": [item["id"] for item in samples]
    }


def make_loader() -> DataLoader2[Any]:
    _, square, _ = devices()
    graph = IterableWrapper(range(LENGTH)).shuffle().sharding_filter().map(sample).batch(BATCH).collate(collate)
    device = DeviceOptions(
        "xla",
        host_prefetch=2,
        transfer_threads=2,
        sync="loader",
        on_new_shape="drop",
        input_sharding={"x": Sharding(square, ("data", "model")), "y": Sharding(square, ("data",)), "ids": None},
    )
    service = MultiProcessingReadingService(2, device=device)
    loader: DataLoader2[Any] = DataLoader2(graph, reading_service=service)
    loader.seed(3)
    return loader


def train(folder: Path, kill_at: int | None) -> None:
    """Train, write what was seen to ``seen``, save every third step; with ``kill_at``, die by SIGKILL after it."""
    checkpoint, log = folder / "checkpoint", folder / "seen"
    with make_loader() as loader:
        weight, step = torch.zeros(4, 1), 0
        if checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            weight, step = saved["weight"], saved["step"]
            loader.load_state_dict(saved["loader"])
        weight = weight.to("xla")
        while loader.epoch < EPOCHS:
            for batch in loader:
                error = batch["x"] @ weight - batch["y"].unsqueeze(1)
                weight = weight - 0.01 * batch["x"].t() @ error / BATCH
                step += 1
                with log.open("a") as lines:
                    lines.write(json.dumps([step, batch["ids"], weight.cpu().flatten().tolist()]) + "\n")
                if step % 3 == 0:
                    state = {"weight": weight.cpu(), "step": step, "loader": loader.state_dict()}
                    torch.save(state, checkpoint.with_suffix(".new"))
                    checkpoint.with_suffix(".new").replace(checkpoint)
                if step == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1] in ("layouts", "other_device"):
        print(json.dumps(globals()[sys.argv[1]]()))
    else:
        train(Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
