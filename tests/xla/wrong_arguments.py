"""Wrong arguments of the tools for XLA."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from tests.device.loaders import Saved
from tests.wrong_arguments.rows import Row, calls, marked
from torchpipe.state import SnapshotPolicy
from torchpipe.xla.serial import SerialExecutor
from torchpipe.xla.several_devices import SeveralDevices
from torchpipe.xla.spawn import spawn

__all__ = ["ROWS"]


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


XLA: list[Row] = [
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
    ("spawn: fn", lambda: spawn(3), TypeError, "fn"),  # type: ignore[arg-type]
    ("spawn: nprocs", lambda: spawn(print, (), 4), ValueError, "nprocs"),
    ("spawn: join", lambda: spawn(print, (), None, False), ValueError, "join"),
    ("spawn: daemon", lambda: spawn(print, (), None, True, True), ValueError, "daemon"),
    *marked(XLA, pytest.mark.xla),
]
