"""``device=``: order, resume at what was handed out rather than at what runs ahead, and exceptions in their place."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.datasets import Augmented, FailingAt, Lines, Numbers, StatefulSampler, seeded, text_of
from tests.device.kinds import DEVICES
from tests.exact import exact
from torchpipe import DataLoader
from torchpipe.device import DeviceOptions


def make(data: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, 3, generator=torch.Generator().manual_seed(4), **options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_batches_are_those_without_a_stage(device: str, workers: int) -> None:
    for data, shuffle in ((Augmented(20), True), (Lines(20), None)):
        with make(data, shuffle=shuffle, num_workers=workers) as plain:
            expected = [exact(batch) for _ in range(2) for batch in plain]
        with make(data, shuffle=shuffle, num_workers=workers, device=device) as loader:
            batches = [batch for _ in range(2) for batch in loader]
        assert all(part.device.type == device for batch in batches for part in batch)
        assert [exact(batch) for batch in batches] == expected


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["map-style", "stateful sampler", "iterable", "rollover"])
def test_resume_is_at_what_was_handed_out(device: str, kind: str) -> None:
    def loader_of(**options: Any) -> DataLoader[Any]:
        if kind == "iterable":
            return make(Lines(20), **options)
        if kind == "stateful sampler":
            return make(Augmented(20), sampler=StatefulSampler(20), **options)
        return make(Augmented(20), shuffle=True, last_batch="rollover" if kind == "rollover" else None, **options)

    with loader_of() as plain:
        expected = [exact(batch) for _ in range(2) for batch in plain]
    for stop in (0, 1, 3, 6):
        for workers, device_prefetch in ((0, 4), (2, 2)):
            if kind == "iterable" and workers:
                continue
            with loader_of(
                device=DeviceOptions(device, device_prefetch=device_prefetch), num_workers=workers
            ) as loader:
                found = [exact(batch) for batch in islice(loader, stop)]
                state = loader.state_dict()
                assert state["delivered"] == stop
            with loader_of(device=device) as other:
                other.load_state_dict(state)
                found += [exact(batch) for batch in other]
                while len(found) < len(expected):
                    found += [exact(batch) for batch in other]
            assert found == expected, (stop, workers)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "place",
    [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}],
    ids=["in process", "workers", "threads"],
)
def test_exceptions_arrive_in_their_place_and_the_rest_follows(device: str, place: dict[str, Any]) -> None:
    with make(FailingAt(12, (4,), no), device=device, **place) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1, 2]
        with pytest.raises(ValueError, match="no") as caught:
            next(iterator)
        assert "[3, 4, 5]" in text_of(caught.value)
        assert [batch.tolist() for batch in iterator] == [[6, 7, 8], [9, 10, 11]]


def no() -> Exception:
    return ValueError("no")


@pytest.mark.parametrize("device", DEVICES)
def test_the_state_after_an_exception_goes_on_with_what_failed(device: str) -> None:
    with make(FailingAt(15, (4,), no), device=device) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(ValueError, match="no"):
            next(iterator)
        states = [loader.state_dict()]
        next(iterator)
        states.append(loader.state_dict())
        next(iterator)
        states.append(loader.state_dict())
    for state, first in zip(states, (3, 9, 12)):
        with make(Numbers(15), device=device) as other:
            other.load_state_dict(state, allow_other_data=True)
            assert [index for batch in other for index in batch.tolist()] == list(range(first, 15))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_loops_own_draws_are_its_own(workers: int) -> None:
    """What the stage's threads make does not touch the generators that the loop draws from."""

    def drawn(device: str | None) -> list[float]:
        with seeded(), make(Augmented(300), num_workers=workers, device=device) as loader:
            return [float(torch.rand(())) for _ in loader]

    assert drawn("cpu") == drawn(None)


class Boxes(torch.utils.data.Dataset[Any]):
    """So many of an image's objects, of which some have none; and a number."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(np.full((index % 3, 4), index)), index


def samples_and_numbers(samples: list[Any]) -> Any:
    return [boxes for boxes, _ in samples], torch.tensor([number for _, number in samples])


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_default_device_changes_neither_the_order_nor_what_workers_make(method: str) -> None:
    def loader_of(num_workers: int = 0, **options: Any) -> DataLoader[Any]:
        torch.manual_seed(4)
        return DataLoader(Boxes(), 3, shuffle=True, num_workers=num_workers, collate_fn=samples_and_numbers, **options)

    def epochs(stop: int | None = None) -> list[Any]:
        with loader_of(2, multiprocessing_context=method) as loader:
            if stop is None:
                return [batch for _ in range(2) for batch in loader]
            got = list(islice(loader, stop))
            state = loader.state_dict()
        with loader_of(1, multiprocessing_context=method) as loader:
            loader.load_state_dict(state)
            return got + [batch for _ in range(2) for batch in loader]

    expected = epochs()
    with torch.device("meta"):
        for got in (epochs(), epochs(1)):
            assert all(part.is_cpu for boxes, numbers in got for part in [*boxes, numbers])
            assert exact(got) == exact(expected)
        in_process = list(loader_of())
    assert all(numbers.is_meta for _, numbers in in_process)  # as torch's loader makes it
    assert exact([boxes for boxes, _ in in_process]) == exact([boxes for boxes, _ in expected[:3]])
