"""What the tests of several devices share: devices in memory, what each should get, turns of draining."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from tests.device.loaders import index_of
from torchpipe.state import SnapshotPolicy
from torchpipe.testing.fakes import FakeBackend
from torchpipe.xla.several_devices import SeveralDevices

__all__ = ["DEPTHS", "TAILS", "drain", "expected", "replays", "several"]

replays = pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")


def several(loader: Any, count: int, every: int | None = 1, **options: Any) -> SeveralDevices:
    return SeveralDevices(
        loader, [FakeBackend() for _ in range(count)], policy=lambda: SnapshotPolicy(every=every), **options
    )


def expected(order: list[int], devices: int, tail: str) -> list[list[int]]:
    """What each device gets of an epoch's batches."""
    short = len(order) % devices
    if short and tail == "drop":
        order = order[:-short]
    if short and tail == "pad":
        order = order + [order[-1]] * (devices - short)
    return [order[index::devices] for index in range(devices)]


def drain(streams: Any, turns: list[int]) -> list[list[int]]:
    """Take one batch for each turn, of the device that it names; a stream at its end is asked once."""
    got: list[list[int]] = [[] for _ in streams]
    for turn in turns:
        item = next(streams[turn % len(streams)], None)
        if item is not None:
            got[turn % len(streams)].append(index_of(item))
    return got


TAILS = st.sampled_from(["drop", "pad"])


DEPTHS = st.sampled_from([(0, 0), (0, 2), (2, 0), (1, 1), (4, 3)])
