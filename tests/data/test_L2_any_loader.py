"""L2 through ``DataLoader``, of any sampler: what follows a state is what follows in a run without a stop.

Over the ends of epochs, with samplers that draw from torch's default generator or their own, at once or lazily, under
other numbers and kinds of workers than the state was saved under, of which one may be killed meanwhile.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tests.data.datasets import Augmented, LazySampler, Numbers
from tests.exact import exact
from tests.tries import tries
from torchpipe import DataLoader

EPOCHS = 3


class RaggedBatches(Sampler[list[int]]):
    """Batches of random sizes, drawn when they are asked for."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[list[int]]:
        left = torch.randperm(self.length).tolist()
        while left:
            size = int(torch.randint(1, 5, ()))
            yield left[:size]
            left = left[size:]


def own() -> torch.Generator:
    return torch.Generator().manual_seed(7)


# Each is made anew for each loader: a length -> options
SAMPLERS: dict[str, Callable[[int], dict[str, Any]]] = {
    "in order": lambda n: {},
    "shuffled": lambda n: {"shuffle": True},
    "subset": lambda n: {"sampler": SubsetRandomSampler(range(1, n))},
    "weighted": lambda n: {"sampler": WeightedRandomSampler([1.0 + i for i in range(n)], n + 3)},
    "weighted, own": lambda n: {"sampler": WeightedRandomSampler([1.0] * n, n, generator=own())},
    "replacement": lambda n: {"sampler": RandomSampler(range(n), replacement=True, num_samples=n + 2)},
    "distributed": lambda n: {"sampler": DistributedSampler(range(n), 2, 1)},
    "lazy": lambda n: {"sampler": LazySampler(n, n)},
    "batches": lambda n: {"batch_sampler": RaggedBatches(n)},
    "lazy batches": lambda n: {"batch_sampler": BatchSampler(LazySampler(n, n), 2, drop_last=True)},
}


@st.composite
def ways(draw: st.DrawFn, *, persistent: bool, threads: bool) -> dict[str, Any]:
    """Where batches are made. Persistent workers draw no base seed for later epochs: that belongs to the stream."""
    workers = draw(st.integers(min_value=persistent, max_value=3))
    way: dict[str, Any] = {"num_workers": workers}
    if workers:
        way |= {"persistent_workers": persistent, "prefetch_factor": draw(st.sampled_from([1, 2, 5]))}
        if threads and draw(st.booleans()):
            way["worker_method"] = "thread"
    return way


@st.composite
def cases(draw: st.DrawFn) -> tuple[Callable[[dict[str, Any]], DataLoader[Any]], list[dict[str, Any]], bool]:
    """What makes a loader, as a script that is run again does; how to make it three times; whether a worker dies."""
    name, length = draw(st.sampled_from(list(SAMPLERS))), draw(st.sampled_from([1, 5, 9, 17]))
    generator, threads = draw(st.booleans()), draw(st.booleans())
    batch = {"batch_size": draw(st.sampled_from([1, 2, 5])), "drop_last": draw(st.booleans())}

    def script(way: dict[str, Any]) -> DataLoader[Any]:
        torch.manual_seed(0)
        options = SAMPLERS[name](length)
        options |= {} if "batch_sampler" in options else batch
        options |= {"generator": own()} if generator else {}
        dataset: Any = Numbers(length) if threads else Augmented(length)  # threads share the global random states
        return DataLoader(dataset, **options, **way)

    persistent = draw(st.booleans())
    found = [draw(ways(persistent=persistent, threads=threads)) for _ in range(3)]
    return script, found, draw(st.booleans())


def kill_one(loader: DataLoader[Any]) -> None:
    for process in loader.stats().processes:
        if process.kind == "worker":
            os.kill(process.pid, signal.SIGKILL)
            return


@given(case=cases(), data=st.data())
@settings(max_examples=tries(15))
def test_L2_any_loader_goes_on_as_the_unbroken_run(case: Any, data: st.DataObject) -> None:
    script, (unbroken, stopped, resumed), kills = case
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more workers than cores; a length that is none
        with script(unbroken) as loader:
            expected = [exact(batch) for _ in range(EPOCHS) for batch in loader]
        delivered = data.draw(st.integers(0, len(expected)))
        with script(stopped) as loader:
            state = loader.state_dict() if delivered == 0 else None
            left = delivered
            while state is None:
                for _ in loader:
                    left -= 1
                    if left == delivered // 2 and kills and stopped.get("worker_method") != "thread":
                        kill_one(loader)
                    if left == 0:
                        state = loader.state_dict()
                        break
        with script(resumed) as loader:
            loader.load_state_dict(state)
            rest: list[str] = []
            for _ in range(EPOCHS):
                rest += [exact(batch) for batch in loader] if len(rest) < len(expected) - delivered else []
    assert rest == expected[delivered:]
