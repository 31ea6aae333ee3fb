"""The order of samples is torch's: given the same seeds, and leaving the generators as torch's loader leaves them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from tests.data.datasets import (
    LENGTH,
    SAMPLERS,
    Augmented,
    Endless,
    LazySampler,
    Lines,
    Numbers,
    global_states,
    sampler_options,
    seeded,
)
from tests.exact import exact
from tests.measured import measured
from torchpipe import DataLoader

WORKERS = {name: (0, 1 + number % 4) for number, name in enumerate(SAMPLERS)}


def as_it_is(batch: Any) -> Any:
    return batch


def trace(kind: Any, name: str, epochs: int = 3, most: int | None = None, **more: Any) -> list[Any]:
    """The index streams of some epochs, or their first ``most`` batches, and where all generators stand after each."""
    options = sampler_options(name)
    found: list[Any] = []
    with seeded():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # more workers than cores
            loader = kind(Numbers(LENGTH), collate_fn=as_it_is, **options, **more)
        for epoch in range(epochs):
            if name == "distributed":
                options["sampler"].set_epoch(epoch)
            iterator = iter(loader)
            found.append(list(islice(iterator, most)))
            generator = options.get("generator") or getattr(options.get("sampler"), "generator", None)
            found.append((global_states(), None if generator is None else bytes(generator.get_state().numpy())))
            found.append(float(torch.rand(())))  # the user draws, too
        if isinstance(loader, DataLoader):
            loader.shutdown()
        del iterator, loader
    return found


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_order_is_torchs(name: str) -> None:
    for workers in WORKERS[name]:
        expected = trace(TorchDataLoader, name, num_workers=workers)
        assert trace(DataLoader, name, num_workers=workers) == expected, workers


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_order_is_torchs_with_workers_that_persist(name: str) -> None:
    expected = trace(TorchDataLoader, name, num_workers=2, persistent_workers=True)
    assert trace(DataLoader, name, num_workers=2, persistent_workers=True) == expected


@pytest.mark.nightly
@pytest.mark.parametrize("name", SAMPLERS)
def test_what_is_not_used_up_has_drawn_what_torchs_loader_draws(name: str) -> None:
    """A sampler that draws lazily is asked when torch's loader asks, also where an epoch is given up.

    But for a generator of torch's own samplers: with torch's loader, the next order depends on the workers then.
    """
    for options in ({"num_workers": 0}, {"num_workers": 2, "prefetch_factor": 1 + len(name) % 3}):
        found = trace(DataLoader, name, most=2, **options)
        if name == "shuffle with generator":
            assert found[::3] == trace(TorchDataLoader, name, most=2, num_workers=0)[::3]
        else:
            assert found == trace(TorchDataLoader, name, most=2, **options), options


class Refills:
    """A batch sampler that fills one container again and again: of ``kind``."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 9

    def __iter__(self) -> Iterator[Any]:
        batch: Any = {"tensor": torch.zeros(2, dtype=torch.long), "array": np.zeros(2, int)}.get(self.kind, [0, 0])
        number = np.int64 if self.kind == "numpy numbers" else int
        for place in range(9):
            numbers = [number(2 * place), number(2 * place + 1)]
            batch[:] = torch.tensor(numbers) if self.kind == "tensor" else numbers
            yield batch


class GivesIterators:
    """Each batch is an iterator, which can be read once."""

    def __len__(self) -> int:
        return 9

    def __iter__(self) -> Iterator[Any]:
        return (map(int, [2 * place, 2 * place + 1]) for place in range(9))


@pytest.mark.parametrize("measure", [False, True])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}])
def test_a_batch_that_is_an_iterator_is_one_like_others(options: dict[str, Any], measure: bool) -> None:
    def make() -> DataLoader[Any]:
        sampler: Any = GivesIterators()
        return measured(DataLoader(list(range(18)), batch_sampler=sampler, collate_fn=list, **options), measure)

    expected = [[2 * place, 2 * place + 1] for place in range(9)]
    running = make()
    stream = iter(running)
    assert [next(stream) for _ in range(3)] == expected[:3]
    resumed = make()
    resumed.load_state_dict(running.state_dict())
    assert list(resumed) == list(stream) == expected[3:]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}])
@pytest.mark.parametrize("kind", ["list", "numpy numbers", "tensor", "array"])
def test_a_batch_that_the_sampler_fills_again_is_not_lost(kind: str, options: dict[str, Any]) -> None:
    def make(**more: Any) -> DataLoader[Any]:
        return DataLoader(list(range(18)), batch_sampler=Refills(kind), collate_fn=list, **more)

    expected = [[2 * place, 2 * place + 1] for place in range(9)]
    running = make(**options)
    stream = iter(running)
    assert [next(stream) for _ in range(3)] == expected[:3]
    state = running.state_dict()
    assert list(stream) == expected[3:]
    assert list(running) == expected
    for more in ({}, {"num_workers": 1}, options):
        resumed = make(**more)
        resumed.load_state_dict(state)
        assert list(resumed) == expected[3:]


def test_an_endless_batch_sampler() -> None:
    for workers in (0, 3):
        with seeded():
            theirs = TorchDataLoader(Numbers(9), batch_sampler=Endless(9), num_workers=workers)  # type: ignore[arg-type]
            expected = [batch.tolist() for batch in islice(theirs, 40)], global_states()
            del theirs
        with seeded(), DataLoader(Numbers(9), batch_sampler=Endless(9), num_workers=workers) as ours:
            assert ([batch.tolist() for batch in islice(ours, 40)], global_states()) == expected


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_draws_between_batches_meet_the_samplers_where_torchs_do(workers: int) -> None:
    """The loop draws from the generator that the sampler draws from: both streams are as with torch's loader."""

    def drawn(kind: Any) -> list[Any]:
        with seeded():
            loader = kind(Numbers(50), 2, sampler=LazySampler(50, 30), num_workers=workers)
            return [(batch.tolist(), int(torch.randint(1000, ()))) for _ in range(2) for batch in loader]

    assert drawn(DataLoader) == drawn(TorchDataLoader)


@pytest.mark.parametrize("workers", [0, 2])
def test_out_of_order_the_same_batches_are_made(workers: int) -> None:
    with seeded():
        theirs = TorchDataLoader(Numbers(60), 4, shuffle=True)
        expected = [sorted(batch.tolist() for batch in theirs) for _ in range(2)]
    with seeded(), DataLoader(Numbers(60), 4, shuffle=True, num_workers=workers, in_order=False) as loader:
        assert [sorted(batch.tolist() for batch in loader) for _ in range(2)] == expected


@pytest.mark.parametrize("context", ["forkserver", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_other_start_methods(context: str) -> None:
    expected = trace(TorchDataLoader, "lazy with all generators", epochs=2)
    found = trace(DataLoader, "lazy with all generators", epochs=2, num_workers=2, multiprocessing_context=context)
    assert found[0] == expected[0]
    assert found[3] == expected[3]


@pytest.mark.parametrize(
    ("dataset", "workers"), [(Augmented(30), 0), (Augmented(30), 1), (Augmented(30), 3), (Lines(30), 1), (Lines(30), 3)]
)
def test_with_torchs_seeding_random_samples_are_torchs_too(dataset: Any, workers: int) -> None:
    def made(kind: Any, **options: Any) -> list[str]:
        shuffle = None if isinstance(dataset, IterableDataset) else True
        with seeded():
            loader = kind(dataset, 4, shuffle=shuffle, num_workers=workers, **options)
            return [exact(batch) for _ in range(2) for batch in loader]

    assert made(DataLoader, worker_seeding="torch") == made(TorchDataLoader)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_dataset_is_divided_as_torch_divides_it(workers: int) -> None:
    def made(kind: Any) -> list[Any]:
        with seeded():
            loader = kind(Lines(37), 4, num_workers=workers, collate_fn=numbers_of)
            return [list(loader), float(torch.rand(())), list(loader)]

    theirs, ours = made(TorchDataLoader), made(DataLoader)
    assert ours[0] == theirs[0]
    assert ours[2] == theirs[2]
    if workers:  # in process, torch's dataset has drawn from the loop's generators
        assert ours[1] == theirs[1]


def numbers_of(samples: list[Any]) -> list[int]:
    return [sample[0] for sample in samples]


def test_a_dataset_that_grows_is_read_as_torch_reads_it() -> None:
    def made(kind: Any) -> list[Any]:
        data = Numbers(10)
        with seeded():
            loader = kind(data, 4, shuffle=True)
            first, length = [batch.tolist() for batch in loader], len(loader)
            data.length = 17
            return [first, length, [batch.tolist() for batch in loader], len(loader)]

    assert made(DataLoader) == made(TorchDataLoader)
