"""Wrong arguments of what moves batches to devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reading_services import MultiProcessingReadingService
from tests.wrong_arguments.rows import Row, calls, marked
from torchpipe.device import DeviceOptions
from torchpipe.iter import IterableWrapper, ToDevice
from torchpipe.testing.fakes import FakeBackend

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
    return MultiProcessingReadingService(device=DeviceOptions("cpu", **options))


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
        *(({"device_prefetch": count}, ValueError, "device_prefetch") for count in (-1, 0)),
        *(
            ({"device_prefetch": 0, name: 2}, ValueError, "device_prefetch")
            for name in ("host_prefetch", "transfer_threads")
        ),
    ),
    *calls(
        "a backend", to_bare, ({"sync": "loader"}, ValueError, "sync"), ({"wait_every": 2}, ValueError, "wait_every")
    ),
    *marked(XLA, pytest.mark.xla),
]
