"""Batches on each device, through every way to have a device stage: the same promises, whatever moves them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from reading_services import InProcessReadingService, MultiProcessingReadingService
from tests.device.kinds import DEVICES, other_stream
from torchpipe import DataLoader, DataLoader2
from torchpipe.device import DeviceOptions
from torchpipe.iter import IterableWrapper
from torchpipe.testing.compare import value_of

LENGTH = 48  # samples, four in a batch
WIDE = 8_000  # numbers in a sample: a batch of 128 kB is in shared memory on its way


DEADLY = (0, 13, 30)


class Labels(NamedTuple):
    number: Any
    name: Any


@dataclass(frozen=True)
class Marked:
    """An object that could move itself, as those of many libraries: its tensors arrive, and to() is not asked."""

    x: torch.Tensor
    name: str

    def to(self, device: Any) -> Any:
        raise AssertionError(f"asked to move to {device}")


class Samples(torch.utils.data.Dataset[Any]):
    """Each has its number everywhere. ``wrong_at`` raises; a few kill their process, once, as ``deaths`` remembers."""

    def __init__(self, wrong_at: int | None, deaths: Path | None) -> None:
        self._wrong_at = wrong_at
        self._deaths = deaths

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, number: int) -> Any:
        if number == self._wrong_at:
            raise ValueError(f"sample {number} is wrong")
        if self._deaths is not None and number in DEADLY and not (self._deaths / str(number)).exists():
            (self._deaths / str(number)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((WIDE,), float(number)), number


def collate(samples: list[Any]) -> Any:
    numbers = torch.tensor([number for _, number in samples])
    return {
        "x": torch.stack([x for x, _ in samples]),
        "pair": (numbers, [f"sample {number}" for _, number in samples]),
        "labels": Labels(numbers % 2 == 0, "even"),
        "marked": Marked(numbers.to(torch.bfloat16), "m"),
    }


def with_loader(
    device: str | None,
    wrong_at: int | None = None,
    deaths: Path | None = None,
    device_prefetch: int = 2,
    **options: Any,
) -> DataLoader[Any]:
    if device is not None:
        options["device"] = DeviceOptions(device, device_prefetch=device_prefetch)
    return DataLoader(Samples(wrong_at, deaths), 4, collate_fn=collate, **options)


def graph(wrong_at: int | None, deaths: Path | None = None) -> Any:
    samples = Samples(wrong_at, deaths)
    return IterableWrapper(range(LENGTH)).sharding_filter().map(samples.__getitem__).batch(4).collate(collate)


def with_workers(
    device: str | None, wrong_at: int | None = None, deaths: Path | None = None, device_prefetch: int = 2
) -> DataLoader2[Any]:
    options: dict[str, Any] = (
        {} if device is None else {"device": DeviceOptions(device, device_prefetch=device_prefetch)}
    )
    return DataLoader2(graph(wrong_at, deaths), reading_service=MultiProcessingReadingService(2, **options))


def with_node(device: str | None, wrong_at: int | None = None, device_prefetch: int = 2) -> DataLoader2[Any]:
    stage = graph(wrong_at)
    if device is not None:
        stage = stage.to_device(device, prefetch=device_prefetch)
    return DataLoader2(stage, reading_service=InProcessReadingService(prefetch_cnt=1))


WAYS: dict[str, Callable[..., Any]] = {
    "DataLoader": lambda *args, **options: with_loader(*args, num_workers=2, **options),
    "DataLoader, threads": lambda *args, **options: with_loader(
        *args, num_workers=2, worker_method="thread", **options
    ),
    "DataLoader, in process": with_loader,
    "service": with_workers,
    "node": with_node,
}
PROCESSES = ("DataLoader", "service")

each_device = pytest.mark.parametrize("device", DEVICES)
each_way = pytest.mark.parametrize("way", WAYS)


def all_of(way: str, device: str | None = None, epochs: int = 1) -> list[Any]:
    with WAYS[way](device) as loader:
        return [value_of(batch) for _ in range(epochs) for batch in loader]


def devices_in(batch: Any) -> set[str]:
    numbers, _ = batch["pair"]
    return {part.device.type for part in (batch["x"], numbers, batch["labels"].number, batch["marked"].x)}


@each_device
@each_way
def test_L1_batches_are_those_without_a_stage(way: str, device: str) -> None:
    """In two epochs: tuples, dicts, named tuples and objects with their types, and strings as they are."""
    expected = all_of(way, epochs=2)
    for device_prefetch in (1, 2, 7):
        with WAYS[way](device, device_prefetch=device_prefetch) as loader:
            batches = [batch for _ in range(2) for batch in loader]
            assert all(devices_in(batch) == {device} for batch in batches)
            assert [value_of(batch) for batch in batches] == expected


@each_device
@each_way
def test_a_batch_that_is_kept_stays_as_it_was(way: str, device: str) -> None:
    """Memory of a batch, in workers, staged or on the device, is not used again while somebody holds it."""
    with WAYS[way](device) as loader:
        kept, taken_down = [], []
        for batch in loader:
            kept.append(batch)
            taken_down.append(value_of(batch))
            if len(kept) % 3 == 0:
                kept[-2] = None  # others are let go of meanwhile
    assert all(batch is None or value_of(batch) == value for batch, value in zip(kept, taken_down))
    assert taken_down == all_of(way)


@each_device
@each_way
def test_L2_a_state_counts_what_the_loop_received(way: str, device: str) -> None:
    expected = all_of(way, epochs=2)
    for stop in (0, 1, 5, 12):
        with WAYS[way](device, device_prefetch=4) as loader:
            found = [value_of(batch) for batch in islice(loader, stop)]
            state = loader.state_dict()
            assert state["delivered"] == stop
        with WAYS[way](device) as other:
            other.load_state_dict(state)
            while len(found) < len(expected):
                found += [value_of(batch) for batch in other]
        assert found == expected, stop


@each_device
@each_way
def test_L7_an_error_is_raised_at_its_place(way: str, device: str) -> None:
    def until_it_fails(where: str | None) -> tuple[list[Any], Any]:
        found: list[Any] = []
        with WAYS[way](where, wrong_at=21) as loader:
            with pytest.raises(ValueError, match="sample 21 is wrong"):
                for batch in loader:
                    found.append(value_of(batch))
            return found, loader.state_dict()

    before, _ = until_it_fails(None)
    found, state = until_it_fails(device)
    assert found == before
    with WAYS[way](device) as mended:
        mended.load_state_dict(state)
        assert found + [value_of(batch) for batch in mended] == all_of(way)


@each_device
@pytest.mark.parametrize("way", PROCESSES)
def test_L4_a_killed_worker_changes_nothing(way: str, device: str, tmp_path: Path) -> None:
    with WAYS[way](device, deaths=tmp_path) as loader:
        assert [value_of(batch) for batch in loader] == all_of(way)
    assert {int(path.name) for path in tmp_path.iterdir()} == set(DEADLY)


@each_device
@each_way
def test_what_a_loop_computes_on_a_stream_of_its_own_is_right(way: str, device: str) -> None:
    """It does not wait for its results, lets each batch go at once, and has work queued before each."""
    with WAYS[way](device, device_prefetch=1) as loader, other_stream(device):
        side = 2048 if device == "cuda" else 32
        busy = torch.ones(side, side, device=device)
        sums = []
        for batch in loader:
            for _ in range(20):
                busy = busy @ busy / side
            sums.append((batch["x"] * busy[0, 0]).sum(dim=1))
            del batch
        found = [int(total) // WIDE for part in sums for total in part.cpu().tolist()]
    with WAYS[way](None) as plain:
        assert found == [number for batch in plain for number in batch["pair"][0].tolist()]


@each_device
@each_way
def test_L6_a_loop_that_is_left_leaves_nothing_behind(way: str, device: str) -> None:
    with WAYS[way](device) as loader:
        for _ in loader:
            break
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(KeyError):
            raise KeyError(next(iterator)["labels"].name)
