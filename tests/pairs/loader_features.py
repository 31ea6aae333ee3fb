"""What a ``DataLoader`` may be made with, what may happen to a run, and what is refused of it: one registry.

Each factor has levels; the first is the plainest. ``REFUSALS`` says which combinations are refused or cannot be exact,
and why: the table in docs/guarantees.md is made from it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from tests.data.datasets import Augmented, Numbers, StatefulNumbers
from tests.data.test_kept_datasets import Counts, Draws
from tests.data.test_own_dataset import NoGenerator, PositionInItself, SetsItself, ToldByInit, divide
from tests.data.test_samplers import CountsItself, Global, Hiding, InPlace, Keeping, New, Own, Ragged, Wrapping
from tests.pairs.covering import Row
from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper
from torchpipe.stats import Budget

__all__ = ["FACTORS", "LIMITS", "REFUSALS", "Limit", "Refusal", "allowed", "loader_options", "refusals_of"]

LENGTH = 11
MULTIPROCESSING = SHARDING_PRIORITIES.MULTIPROCESSING


class ByMany(Numbers):
    """Reads a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Records(Dataset[Any]):
    """Samples as trainings have them: an image, a label, a text, and a draw."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = torch.full((3, 40, 40), float(index)).to(memory_format=torch.contiguous_format)
        return {"image": image, "label": index, "text": f"number {index}", "noise": float(torch.rand(()))}


class DrawingLines(IterableDataset[Any]):
    """Divides itself; draws from each global generator; no state."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        part, parts = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(part, 30, parts):
            yield number, random.random(), float(np.random.rand()), float(torch.rand(()))


class OwnDraws(Numbers):
    """Draws from generators that it holds."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.rng, self.held = np.random.default_rng(3), {"python": random.Random(3), "torch": [torch.Generator()]}

    def __getitem__(self, index: int) -> Any:
        drawn = self.held["python"].random(), float(torch.rand((), generator=self.held["torch"][0]))
        return (super().__getitem__(index), self.rng.random(), *drawn)


def tell_init(worker: int) -> None:
    """Reads what a worker is told, and draws: of no account to what is made."""
    info: Any = get_worker_info()
    assert info.id == worker
    if getattr(info, "worker_method", "multiprocessing") != "thread":  # whose generators are the process's
        random.random(), np.random.rand(), torch.rand(())


def joined(samples: list[Any]) -> Any:
    return [len(samples), *samples]


DATASETS: dict[str, Callable[[], Any]] = {
    "numbers": lambda: Numbers(LENGTH),
    "augmented": lambda: Augmented(LENGTH),
    "own generators": lambda: OwnDraws(LENGTH),
    "records": Records,
    "by many": lambda: ByMany(LENGTH),
    "stateful": lambda: StatefulNumbers(LENGTH),
    "iterable": DrawingLines,
    "iterable, position": PositionInItself,
    "iterable, part": SetsItself,
    "iterable, iterator state": NoGenerator,
    "iterable, init": ToldByInit,
    "iterable, counts": Counts,
    "iterable, generator": Draws,
    "graph": lambda: IterableWrapper(range(30)).shuffle(buffer_size=7).sharding_filter(),
    "graph, dispatched": lambda: (
        IterableWrapper(range(30)).shuffle(buffer_size=7).sharding_round_robin_dispatch(MULTIPROCESSING).map(abs)
    ),
}


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def _weights() -> list[float]:
    return [1.0 + index % 3 for index in range(LENGTH)]


def _draw_torch() -> int:
    return int(torch.randint(LENGTH, ()))


def _draw_random() -> int:
    return random.randrange(LENGTH)


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "shuffle": lambda: {"shuffle": True},
    "weighted": lambda: {"sampler": WeightedRandomSampler(_weights(), LENGTH)},
    "subset": lambda: {"sampler": SubsetRandomSampler(range(1, LENGTH))},
    "replacement": lambda: {"sampler": RandomSampler(range(LENGTH), replacement=True)},
    "replacement, generator": lambda: {
        "sampler": RandomSampler(range(LENGTH), replacement=True, generator=_generator())
    },
    "distributed": lambda: {"sampler": DistributedSampler(range(LENGTH), num_replicas=2, rank=1)},
    "own state": lambda: {"sampler": Own()},
    "wrapping state": lambda: {"sampler": Wrapping()},
    "own state, batches": lambda: {"batch_sampler": BatchSampler(Own(), 3, drop_last=False)},
    "numpy": lambda: {"sampler": Keeping(np.random.default_rng(0), True)},
    "random": lambda: {"sampler": Keeping(random.Random(0), False)},
    "in place": lambda: {"sampler": InPlace()},
    "in an object": lambda: {"sampler": Hiding("object")},
    "made when used": lambda: {"sampler": Hiding("first use")},
    "counts, and is told": lambda: {"sampler": CountsItself()},
    "a new attribute": lambda: {"sampler": New()},
    "global": lambda: {"sampler": Global(_draw_torch)},
    "global random": lambda: {"sampler": Global(_draw_random)},
    "ragged": lambda: {"batch_sampler": Ragged()},
    "a list": lambda: {"sampler": [3, 1, 2, 0, 7]},
}

WAYS: dict[str, dict[str, Any]] = {
    "0": {},
    "1": {"num_workers": 1},
    "2": {"num_workers": 2},
    "3": {"num_workers": 3},
    "2 threads": {"num_workers": 2, "worker_method": "thread"},
    "3, one core": {"num_workers": 3, "autotune": Budget(cores=1)},
    "1, forkserver": {"num_workers": 1, "multiprocessing_context": "forkserver"},
}

FACTORS: dict[str, list[str]] = {
    "dataset": list(DATASETS),
    "sampler": list(SAMPLERS),
    "batch": ["3", "1", "none", "3, drop_last", "3, rollover"],
    "way": list(WAYS),  # of the run that is stopped
    "then": list(WAYS),  # of the run that goes on
    "generator": ["no", "yes"],
    "persistent": ["no", "yes"],
    "in_order": ["yes", "no"],
    "prefetch": ["2", "1", "5"],
    "seeding": ["batch", "torch"],
    "fetch": ["batches", "samples"],
    "device": ["no", "cpu"],
    "collate": ["torch's", "own"],
    "init": ["no", "tells"],
    "measure": ["no", "yes"],
    "happens": [
        "nothing",
        "resume",
        "two resumes",
        "resume between epochs",
        "kill",
        "kill and resume",
        "break",
        "thread",
        "taken back here",  # the state is loaded into the loader that has gone on since
        "rewound",  # one of before the first batch is
        "resized",  # as autotune does it, again and again
    ],
    "beside": ["nothing", "validation", "training draws"],
    "loop": ["while", "set_epoch"],  # `for epoch in range(loader.epoch, n): loader.set_epoch(epoch)`
    "state": ["as it is", "torch.save", "json"],
    "asks": ["once", "each batch"],  # for its state
    "distributed": ["no", "yes"],
    "timeout": ["no", "60"],
    "at": ["1", "3", "last", "later"],  # when: after so many batches, an epoch's last one, one of a later epoch
}


def is_iterable(row: Row) -> bool:
    return row["dataset"].startswith(("iterable", "graph"))


_TORCHS_SAMPLERS = (
    "none",
    "shuffle",
    "weighted",
    "subset",
    "replacement",
    "replacement, generator",
    "distributed",
    "a list",
)
_DRAWING = ("augmented", "records", "iterable")


def allowed(row: Row) -> bool:
    """Does the row make sense, and is it said to be exact? The second half is what docs say of it."""
    iterable, happens, way, then = is_iterable(row), row["happens"], row["way"], row["then"]
    if iterable and (row["sampler"] != "none" or row["batch"] == "3, rollover" or row["generator"] == "yes"):
        return False
    if ("batches" in row["sampler"] or row["sampler"] == "ragged") and row["batch"] != "3":
        return False
    if row["batch"] == "none" and row["collate"] == "own":
        return False
    if way == "0" and (row["persistent"] == "yes" or row["prefetch"] != "2" or row["in_order"] == "no"):
        return False
    if then == "0" and row["persistent"] == "yes":
        return False
    if row["init"] == "tells" and (way == "0" or row["dataset"] == "iterable, init"):
        return False
    if "kill" in happens and (way == "0" or "thread" in way):
        return False
    if happens == "break" and row["at"] not in ("1", "3"):
        return False
    if happens == "resized" and "one core" not in way:
        return False
    if way == "0" and row["timeout"] != "no":
        return False
    if row["distributed"] == "yes" and (
        iterable
        or row["sampler"] not in ("none", "shuffle")
        or row["seeding"] == "torch"
        or row["in_order"] == "no"
        or row["dataset"] == "stateful"
        or row["batch"] == "3, rollover"
    ):
        return False  # which of these is refused, tests/data/test_ranked.py says
    if row["in_order"] == "no" and happens in ("break", "thread"):
        return False  # which batches come first, nobody knows
    return not any(limit.when(row) for limit in LIMITS)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What is neither exact nor refused: as with torch's loader, or not to be known. docs/guarantees.md lists it."""

    what: str
    why: str
    when: Callable[[Row], bool]


LIMITS: list[Limit] = [
    Limit(
        what="random numbers of the process (`random`, numpy, torch) in worker threads, or without workers in a thread "
        "that is neither the main one nor has called `torchpipe.own_random_states()`",
        why="other threads draw from them too; use `get_worker_info().rng`, or worker processes",
        when=lambda row: row["dataset"] in _DRAWING
        and ("thread" in row["way"] + row["then"] or (row["happens"] == "thread" and row["way"] == "0")),
    ),
    Limit(
        what="random numbers that a dataset draws with `worker_seeding=\"torch\"` and `num_workers=0`",
        why="they are the process's own, as with torch's loader",
        when=lambda row: row["seeding"] == "torch" and row["way"] == "0" and row["dataset"] in _DRAWING,
    ),
    Limit(
        what="random numbers from a generator that a map-style dataset or a `collate_fn` holds, in worker threads or "
        "with `worker_seeding=\"torch\"`",
        why="a warning names it",
        when=lambda row: row["dataset"] == "own generators" and (row["seeding"] == "torch" or _has_threads(row)),
    ),
    Limit(
        what="a sampler that draws from the process's generators with each batch, beside other code that does",
        why="how far it runs ahead decides who draws what; a resume that finds another order is refused",
        when=lambda row: row["sampler"].startswith("global")
        and (row["beside"] != "nothing" or row["happens"] == "thread"),
    ),
    Limit(
        what="the epoch after `break`, with a sampler class of your own",
        why="what it keeps depends on how far it was asked; generators of torch's own samplers are put back",
        when=lambda row: row["happens"] == "break" and row["sampler"] not in _TORCHS_SAMPLERS,
    ),
    Limit(
        what="the epoch after `break`, with `worker_seeding=\"torch\"` and a generator of torch's samplers",
        why="it is torch's: how far ahead the sampler was asked decides (`prefetch_factor`)",
        when=lambda row: row["happens"] == "break" and row["seeding"] == "torch" and row["prefetch"] != "2",
    ),
    Limit(
        what="the epoch after `break`, with an iterable dataset that keeps something without a `state_dict`",
        why="what it keeps depends on how far workers ran ahead",
        when=lambda row: row["happens"] == "break" and row["dataset"] in ("iterable, counts", "iterable, generator"),
    ),
    Limit(
        what="`in_order=False` with a dataset that has a state, or with `worker_seeding=\"torch\"`",
        why="who makes which batch depends on time",
        when=lambda row: row["in_order"] == "no" and (row["dataset"] == "stateful" or row["seeding"] == "torch"),
    ),
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """``when`` a row has this, it is refused: with ``error``, by ``where`` (made, iterated, loaded)."""

    what: str
    when: Callable[[Row], bool]
    error: type[Exception]
    text: str


REFUSALS: list[Refusal] = [
    Refusal(
        what="`worker_seeding=\"torch\"` with `persistent_workers=True`",
        when=lambda row: row["seeding"] == "torch" and row["persistent"] == "yes",
        error=ValueError,
        text="persistent_workers",
    ),
    Refusal(
        what="worker threads with `worker_seeding=\"torch\"`",
        when=lambda row: row["seeding"] == "torch" and _has_threads(row),
        error=ValueError,
        text="worker_method='thread'",
    ),
    Refusal(
        what="`fetch=\"samples\"` with `worker_seeding=\"torch\"`",
        when=lambda row: row["fetch"] == "samples" and row["seeding"] == "torch",
        error=ValueError,
        text="fetch='samples' seeds random numbers for each sample",
    ),
    Refusal(
        what="`fetch=\"samples\"` with `autotune`",
        when=lambda row: row["fetch"] == "samples"
        and "one core" in row["way"] + (row["then"] if _resumes(row) else ""),
        error=ValueError,
        text="autotune measures batches",
    ),
    Refusal(
        what="`fetch=\"samples\"` with an iterable dataset, with `batch_size=None`, or with a dataset that has "
        "`__getitems__` or a state of its own",
        when=lambda row: row["fetch"] == "samples"
        and (is_iterable(row) or row["batch"] == "none" or row["dataset"] in ("by many", "stateful")),
        error=ValueError,
        text="fetch='samples'",
    ),
    Refusal(
        what="worker threads over a dataset with a state of its own",
        when=lambda row: row["dataset"] in ("stateful", "iterable, position")
        and ("thread" in row["way"] or (_has_threads(row) and _count(row["way"]) == _count(row["then"]))
             or (_has_threads(row) and is_iterable(row))),
        error=ValueError,
        text="worker_method='thread' shares the dataset",
    ),
    Refusal(
        what="worker threads over an iterable dataset that holds a random generator",
        when=lambda row: row["dataset"] == "iterable, generator" and _has_threads(row),
        error=ValueError,
        text="has a random generator",
    ),
    Refusal(
        what="worker threads over a graph that dispatches",
        when=lambda row: row["dataset"] == "graph, dispatched" and _has_threads(row),
        error=ValueError,
        text="worker_method='thread' cannot run a graph",
    ),
    Refusal(
        what="fewer worker threads than an iterable dataset was divided among, with `worker_init_fn`",
        when=lambda row: is_iterable(row) and "thread" in row["then"] and _resumes(row)
        and _count(row["way"]) > _count(row["then"]) and (row["init"] == "tells" or row["dataset"] == "iterable, init"),
        error=ValueError,
        text="worker_init_fn is called in each worker's thread",
    ),
    Refusal(
        what="a map-style dataset with a state, or `worker_seeding=\"torch\"`, resumed under another number of workers",
        when=lambda row: _resumes(row) and not is_iterable(row) and _count(row["way"]) != _count(row["then"])
        and (row["dataset"] == "stateful" or row["seeding"] == "torch"),
        error=StateError,
        text="num_workers=",
    ),
]  # fmt: skip
"""What docs/guarantees.md lists: the first that fits a row is how it is refused."""


def _resumes(row: Row) -> bool:
    return "resume" in row["happens"]


def _has_threads(row: Row) -> bool:
    return "thread" in row["way"] + (row["then"] if _resumes(row) else "")


def _count(way: str) -> int:
    return int(way[0])


def refusals_of(row: Row) -> list[Refusal]:
    """Each that applies: which of them a loader names first is nothing that a user relies on."""
    return [refusal for refusal in REFUSALS if refusal.when(row)]


def plain_way(row: Row) -> dict[str, Any]:
    """How the oracle runs: in process, if the stream is said not to depend on workers; else with as many, forked."""
    workers = int(row["persistent"] == "yes")  # they draw one base seed for all epochs
    if is_iterable(row) or row["dataset"] == "stateful" or row["seeding"] == "torch":
        workers = _count(row["way"])
    return {"num_workers": workers, "persistent_workers": row["persistent"] == "yes"}


def loader_options(row: Row, way: str | None) -> dict[str, Any]:
    """Arguments of ``DataLoader``, made anew. ``way`` None: those of the oracle."""
    options: dict[str, Any] = {"dataset": DATASETS[row["dataset"]](), **SAMPLERS[row["sampler"]]()}
    if "batch_sampler" not in options:
        size = row["batch"].split(",")[0]
        options["batch_size"] = None if size == "none" else int(size)
        options["drop_last"] = "drop_last" in row["batch"]
        if "rollover" in row["batch"]:
            options["last_batch"] = "rollover"
    if row["generator"] == "yes":
        options["generator"] = torch.Generator().manual_seed(7)
    if row["collate"] == "own":
        options["collate_fn"] = joined
    if row["seeding"] == "torch":
        options["worker_seeding"] = "torch"
    if row["fetch"] == "samples":
        options["fetch"] = "samples"
    if row["dataset"] == "iterable, init":
        options["worker_init_fn"] = divide
    elif row["init"] == "tells":
        options["worker_init_fn"] = tell_init
    if row["distributed"] == "yes":
        options["distributed"] = True
    if way is None:
        return options | plain_way(row)
    options |= WAYS[way]
    if way != "0":
        options |= {
            "persistent_workers": row["persistent"] == "yes",
            "in_order": row["in_order"] == "yes",
            "prefetch_factor": int(row["prefetch"]),
            "timeout": 60 if row["timeout"] == "60" else 0,
        }
    if row["device"] == "cpu":
        options["device"] = "cpu"
    return options
