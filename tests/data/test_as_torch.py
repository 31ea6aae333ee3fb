"""Any loader gives what torch's gives, bit for bit: batches, their order, lengths, what is drawn from generators."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data import DataLoader as TorchDataLoader

from tests.data.datasets import Numbers
from tests.exact import exact
from tests.tries import tries
from torchpipe import DataLoader

EPOCHS = 3


def worker() -> int:
    info = get_worker_info()
    return -1 if info is None else info.id


class Mapped(Numbers):
    """Draws from each global generator, and says who has made an item."""

    def __getitem__(self, index: int) -> Any:
        return {
            "item": [index, str(index)],
            "drawn": (torch.rand(2), random.random(), np.random.rand()),
            "by": worker(),
        }


class Streamed(IterableDataset[Any]):
    """Divides itself; draws in workers only, since in process it has random states of its own."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, self.length, step):
            yield index, 0.0 if info is None else float(torch.rand(())), worker()


def as_given(batch: Any) -> Any:
    return batch


SAMPLERS: dict[str, Callable[[Dataset[Any], int], Sampler[int]]] = {
    "replacement": lambda dataset, n: RandomSampler(dataset, replacement=True, num_samples=n + 3),  # type: ignore[arg-type]
    "weighted": lambda dataset, n: WeightedRandomSampler([1.0 + index for index in range(n)], n),
    "subset": lambda dataset, n: SubsetRandomSampler(range(n // 2)),
    "in order": lambda dataset, n: SequentialSampler(dataset),  # type: ignore[arg-type]
}


@st.composite
def scripts(draw: st.DrawFn) -> Callable[..., Any]:
    """What makes a loader of a class, with further options, from the same seeds each time."""
    length, streamed = draw(st.sampled_from([0, 1, 5, 17, 40])), draw(st.booleans())
    modes = ["plain", "alone"] + ([] if streamed or not length else ["shuffle", "sampler", "batch_sampler"])
    mode, sampler = draw(st.sampled_from(modes)), SAMPLERS[draw(st.sampled_from(list(SAMPLERS)))]
    size, drop_last, generator = draw(st.sampled_from([1, 2, 4, 7])), draw(st.booleans()), draw(st.booleans())
    options: dict[str, Any] = {"num_workers": draw(st.integers(0, 3))}
    if options["num_workers"]:
        options |= {"prefetch_factor": draw(st.sampled_from([1, 2, 4])), "multiprocessing_context": "fork"}
    if draw(st.booleans()):
        options["collate_fn"] = as_given

    def script(kind: Any, **more: Any) -> Any:
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(11)
        dataset: Any = Streamed(length) if streamed else Mapped(length)
        own: dict[str, Any] = {"batch_size": size, "drop_last": drop_last}
        if mode == "alone":
            own = {"batch_size": None}
        elif mode == "batch_sampler":
            own = {"batch_sampler": BatchSampler(sampler(dataset, length), size, drop_last)}
        elif mode == "sampler":
            own["sampler"] = sampler(dataset, length)
        elif mode == "shuffle":
            own["shuffle"] = True
        if generator:
            own["generator"] = torch.Generator().manual_seed(7)
        return kind(dataset, **own, **options, **more)

    return script


def told(loader: Any, breaks: list[int | None]) -> list[str]:
    """All that a script can see of it: each epoch whole, or given up after so many batches."""
    found = []
    try:
        found.append(str(len(loader)))
    except TypeError as error:
        found.append(str(error))
    for most in breaks:
        iterator = iter(loader)
        for count, batch in enumerate(iterator, 1):
            found.append(exact(batch))
            if count == most:
                break
        found.append("the end")
        del iterator
    return [*found, exact(torch.rand(3)), exact(random.random()), exact(np.random.rand())]


@given(script=scripts(), breaks=st.lists(st.sampled_from([None, 1, 3]), min_size=EPOCHS, max_size=EPOCHS))
@settings(max_examples=tries(25))
def test_L1_any_loader_gives_what_torch_s_gives(script: Any, breaks: list[int | None]) -> None:
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more workers than cores
        expected = told(script(TorchDataLoader), breaks)
        with script(DataLoader, worker_seeding="torch") as loader:
            assert told(loader, breaks) == expected


@pytest.mark.parametrize("most", [1, 2, 4])
def test_L1_the_epoch_after_a_break_draws_what_torch_s_draws(most: int) -> None:
    """How far ahead the sampler was asked decides where generator= stands; with torch's seeding, as torch's does."""

    def run(kind: Any, **more: Any) -> list[str]:
        torch.manual_seed(11)
        loader = kind(
            Mapped(5),
            shuffle=True,
            num_workers=1,
            prefetch_factor=4,
            generator=torch.Generator().manual_seed(7),
            **more,
        )
        return told(loader, [None, most, None])[:-2]  # random and numpy were not seeded

    with torch.random.fork_rng(devices=[]):
        assert run(DataLoader, worker_seeding="torch") == run(TorchDataLoader)
