"""Wrong arguments of what moves batches to devices, and of the tools for XLA."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from reading_services import MultiProcessingReadingService
from tests.device.loaders import Saved
from tests.wrong_arguments.rows import Row, calls, marked
from torchpipe.iter import IterableWrapper, ToDevice
from torchpipe.state import SnapshotPolicy
from torchpipe.testing.devices import FakeBackend
from torchpipe.xla.serial import SerialExecutor
from torchpipe.xla.several_devices import SeveralDevices
from torchpipe.xla.spawn import ordinal, spawn

__all__ = ["ROWS"]


class Bare:
    """A backend without sync."""

    name, releases_source = "bare", True
    prepare = transfer = receive = close = FakeBackend.close


def to_cpu(**options: Any) -> Any:
    return IterableWrapper([1]).to_device(options.pop("device", "cpu"), **options)


def to_bare(**options: Any) -> Any:
    return ToDevice(IterableWrapper([1]), Bare(), **options)  # type: ignore[arg-type]


def by_service(**options: Any) -> Any:
    return MultiProcessingReadingService(device="cpu", **options)


def several(**options: Any) -> Any:
    return SeveralDevices(Saved(3), **{"devices": ["cpu"], **options})


def run_serially() -> Any:
    return SerialExecutor("lock").run(3)  # type: ignore[arg-type]


def wrapped(**options: Any) -> Any:
    import torchpipe.xla.drop_in

    return torchpipe.xla.drop_in.MpDeviceLoader(Saved(3), options.pop("on", "cpu"), **options)


def device_loader() -> Any:
    import torchpipe.xla.drop_in

    return torchpipe.xla.drop_in.PerDeviceLoader([], "cpu")  # type: ignore[arg-type]


OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"host_prefetch": 1.5}, TypeError, "host_prefetch"),
    ({"host_prefetch": 1, "host_prefetch_bytes": 0}, ValueError, "host_prefetch_bytes"),
    ({"device_prefetch_bytes": 0}, ValueError, "device_prefetch_bytes"),
    ({"host_prefetch_bytes": 10}, ValueError, "host_prefetch"),
    ({"transfer_threads": 0}, ValueError, "transfer_threads"),
    *(({"dtype": value}, ValueError, "dtype") for value in ("bfloat17", torch.int8, 16)),
    *(({"sync": value}, ValueError, "sync") for value in ("always", None)),
    ({"batches_per_execution": 4}, ValueError, "sync"),
    ({"sync": "loader", "batches_per_execution": 0}, ValueError, "batches_per_execution"),
    ({"sync": "loader", "batches_per_execution": 4, "wait_every": 6}, ValueError, "wait_every"),
    ({"on_new_shape": "ignore"}, ValueError, "on_new_shape"),
    ({"convert_numpy": 1}, TypeError, "convert_numpy"),
    ({"pad_value": "0"}, TypeError, "pad_value"),
    ({"pad_to": [8, 16]}, ValueError, "on_new_shape"),
    *(({"on_new_shape": "pad", "pad_to": value}, ValueError, "pad_to") for value in ([], [16, 8], {"x": 8})),
    ({"input_sharding": object()}, ValueError, "input_sharding"),
]

XLA: list[Row] = [
    *calls(
        "to_device",
        to_cpu,
        *(
            ({"device": "xla", "input_sharding": tree}, TypeError, "input_sharding")
            for tree in ({}, [], "data", {"x": "data"}, {"x": None}, [None])
        ),
    ),
    *calls(
        "MpDeviceLoader",
        wrapped,
        ({"prefetch": 3}, TypeError, "prefetch"),
        ({"loader_prefetch_size": -1}, ValueError, "loader_prefetch_size"),
        ({"device_prefetch_size": None}, TypeError, "device_prefetch_size"),
        ({"batches_per_execution": 0}, ValueError, "batches_per_execution"),
        ({"host_to_device_transfer_threads": 0}, ValueError, "host_to_device_transfer_threads"),
        ({"on": "tpu"}, ValueError, "device"),
        ({"on": "cpu", "input_sharding": object()}, ValueError, "input_sharding"),
    ),
    ("PerDeviceLoader: loader", device_loader, TypeError, "ParallelLoader"),
]

ROWS: list[Any] = [
    *calls("to_device", to_cpu, *OPTIONS),
    *calls("service", by_service, *OPTIONS),
    *calls(
        "to_device",
        to_cpu,
        *(({"prefetch": 0, name: 2}, ValueError, name) for name in ("host_prefetch", "transfer_threads")),
        *(({"device": name, "input_sharding": {"x": None}}, ValueError, "input_sharding") for name in ("cpu", "cuda")),
    ),
    *calls(
        "service",
        by_service,
        ({"device_prefetch": -1}, ValueError, "device_prefetch"),
        *(
            ({"device_prefetch": 0, name: 2}, ValueError, "device_prefetch")
            for name in ("host_prefetch", "transfer_threads")
        ),
    ),
    *calls(
        "a backend", to_bare, ({"sync": "loader"}, ValueError, "sync"), ({"wait_every": 2}, ValueError, "wait_every")
    ),
    *calls(
        "SeveralDevices",
        several,
        ({"devices": []}, ValueError, "device"),
        ({"devices": "cpu"}, TypeError, "devices"),
        ({"devices": ["cuda:0", torch.device("cuda:0")]}, ValueError, "devices"),
        ({"devices": ["tpu"]}, ValueError, "device"),
        ({"tail": "keep"}, ValueError, "tail"),
        ({"host_prefetch": -1}, ValueError, "host_prefetch"),
        ({"device_prefetch": "2"}, TypeError, "device_prefetch"),
        ({"policy": SnapshotPolicy()}, TypeError, "policy"),
    ),
    *(
        ("SerialExecutor: " + parameter, partial(SerialExecutor, *arguments), error, parameter)  # type: ignore[arg-type]
        for arguments, error, parameter in [
            ((3,), TypeError, "path"),
            (("/tmp",), ValueError, "path"),
            (("lock", "soon"), TypeError, "timeout"),
            (("lock", -1), ValueError, "timeout"),
        ]
    ),
    ("SerialExecutor.run: function", run_serially, TypeError, "function"),
    *(
        ("ordinal: rank", partial(ordinal, *arguments), ValueError, "rank")
        for arguments in ((1, None), (None, 2), (2, 2), (-1, 2))
    ),
    ("spawn: fn", lambda: spawn(3), TypeError, "fn"),  # type: ignore[arg-type]
    ("spawn: nprocs", lambda: spawn(print, (), 4), ValueError, "nprocs"),
    ("spawn: join", lambda: spawn(print, (), None, False), ValueError, "join"),
    ("spawn: daemon", lambda: spawn(print, (), None, True, True), ValueError, "daemon"),
    *marked(XLA, pytest.mark.xla),
]
