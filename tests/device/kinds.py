"""The devices that tests go through: a body that runs on the CPU here runs on each of them where it can be had."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch

__all__ = ["DEVICES", "MOVED_TO", "other_stream"]

MOVED_TO = [
    pytest.param("xla", marks=pytest.mark.xla),
    pytest.param("cuda", marks=pytest.mark.cuda),
]  # of memory of its own
DEVICES = ["cpu", *MOVED_TO]


def other_stream(device: str) -> AbstractContextManager[object]:
    """A loop's own stream on the device, beside the one that is there by default."""
    return torch.cuda.stream(torch.cuda.Stream()) if device == "cuda" else nullcontext()  # type: ignore[no-untyped-call]
