"""Loaders to be audited by tests/audit/test_audit.py: good ones, and ones with a fault each."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchsDataLoader
from torch.utils.data import Dataset, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper


class Numbers(Dataset):  # type: ignore[type-arg]
    """A sample draws, as augmentation does."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, "x": torch.full((3,), float(index)), "noise": torch.rand(2)}


class Plain(Numbers):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, "x": torch.full((3,), float(index))}


class Counting(Numbers):
    def __init__(self) -> None:
        self.calls = 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.calls += 1
        return {"id": index, "calls": self.calls}


class Changing(Numbers):
    def __init__(self) -> None:
        self.rows = [torch.full((2,), float(index)) for index in range(24)]

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, "x": self.rows[index].add_(1)}


class Clock(Numbers):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, "x": index, "noise": time.time_ns()}


def map_style(num_workers: int = 2, rank: int = 0, world_size: int = 1) -> Any:
    torch.manual_seed(0)
    dataset = torch.utils.data.Subset(Numbers(), range(rank, 24, world_size))
    return DataLoader(dataset, batch_size=3, shuffle=True, num_workers=num_workers)


def twice(item: dict[str, int]) -> dict[str, int]:
    return {**item, "x": item["id"] * 2}


def graph(workers: int = 2) -> Any:
    pipe = IterableWrapper([{"id": n} for n in range(24)]).shuffle(buffer_size=8).sharding_filter().map(twice).batch(3)
    loader = DataLoader2(pipe, reading_service=MultiProcessingReadingService(workers))
    loader.seed(1)
    return loader


class _Counts:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, item: dict[str, int]) -> dict[str, int]:
        self.calls += 1
        return {**item, "calls": self.calls}


def timed(item: dict[str, int]) -> dict[str, int]:
    return {**item, "at": time.time_ns()}


def add_in_place(item: Any) -> Any:
    item["x"] += 1
    return item


class _Shared:
    """Gives one object again and again."""

    def __init__(self) -> None:
        self.x = torch.zeros(1)

    def __call__(self, item: dict[str, int]) -> dict[str, Any]:
        return {**item, "x": self.x}


def _graph_of(*functions: Any) -> Any:
    pipe = IterableWrapper([{"id": n} for n in range(24)])
    for function in functions:
        pipe = pipe.map(function)
    return DataLoader2(pipe.batch(3))


def graph_that_counts() -> Any:
    return _graph_of(twice, _Counts())


def graph_with_the_clock() -> Any:
    return _graph_of(timed)


def graph_that_changes() -> Any:
    pipe = IterableWrapper([{"id": n} for n in range(24)]).map(_Shared()).shuffle(buffer_size=4).map(add_in_place)
    loader: DataLoader2[Any] = DataLoader2(pipe.batch(3))
    loader.seed(1)
    return loader


def stateful(num_workers: int = 2) -> Any:
    torch.manual_seed(0)
    return StatefulDataLoader(Plain(), batch_size=3, shuffle=True, num_workers=num_workers)


def plain_torch(num_workers: int = 0) -> Any:
    torch.manual_seed(0)
    return TorchsDataLoader(Plain(), batch_size=3, shuffle=True, num_workers=num_workers)


def unseeded() -> Any:
    return DataLoader(Plain(), batch_size=3, shuffle=True)


def counting() -> Any:
    return DataLoader(Counting(), batch_size=3)


def changing() -> Any:
    return DataLoader(Changing(), batch_size=3)


def clock() -> Any:
    return DataLoader(Clock(), batch_size=3)


class OffByOne:
    """Its state is one batch ahead of what it has given."""

    ahead = 1

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        while self.next < 12:
            self.next += 1
            yield [{"id": 2 * self.next + n, "x": self.next} for n in range(2)]
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next + self.ahead if self.next else 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class Right(OffByOne):
    ahead = 0


class Endless(Right):
    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        while True:
            self.next += 1
            yield [{"id": self.next}]


class OfIterator:
    """The iterator has the state, as Grain's have."""

    def __iter__(self) -> Iterator[int]:
        return _Counter()


class _Counter(Iterator[int]):
    def __init__(self) -> None:
        self.next = 0

    def __next__(self) -> int:
        self.next += 1
        if self.next > 10:
            raise StopIteration
        return self.next

    def get_state(self) -> int:
        return self.next

    def set_state(self, state: int) -> None:
        self.next = state


def _work(pipe: Any) -> None:
    for number in range(12):
        pipe.send(number)
        pipe.recv()


class Hanging:
    """Waits for its worker for ever."""

    def __iter__(self) -> Iterator[int]:
        ours, theirs = multiprocessing.get_context("fork").Pipe()
        worker = multiprocessing.get_context("fork").Process(target=_work, args=(theirs,), daemon=True)
        worker.start()  # `theirs` stays open here: the end of the worker is not seen
        for _ in range(12):
            yield ours.recv()
            ours.send(None)
        worker.join()


class Leaving(Right):
    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        yield from super().__iter__()


class Raising(Right):
    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        yield from list(super().__iter__())[:3]
        raise ZeroDivisionError("a bad sample")


class DyingInTheSecondRun(OffByOne):
    """In the process with the other hash seed, unless it is resumed."""

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        dies = not self.next and os.environ["PYTHONHASHSEED"] == "2"
        for batch in super().__iter__():
            if dies and self.next == 5:
                raise ZeroDivisionError("only here")
            yield batch


class Exiting(Right):
    """Ends the whole process in the middle, with the code of success."""

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        for batch in super().__iter__():
            if self.next == 7:
                os._exit(0)
            yield batch


def one_pass() -> Any:
    return ([{"id": number}] for number in range(12))


class CrashingBehindASave(Right):
    def state_dict(self) -> dict[str, int]:
        atexit.register(os._exit, 7)
        return super().state_dict()


class LosingBeforeItRefuses(Right):
    """Under four workers two batches are gone, and an error comes later."""

    def __init__(self, workers: int = 2) -> None:
        super().__init__()
        self.workers, self.loaded = workers, False

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state)
        self.loaded = True

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        bad = self.loaded and self.workers == 4
        for number, batch in enumerate(super().__iter__()):
            if bad and number == 4:
                raise RuntimeError("other workers")
            if not bad or number > 1:
                yield batch


class OrderedByWorkers(Right):
    """Its workers read each a part, and their number decides the order: a position counts others under another one."""

    def __init__(self, workers: int = 2) -> None:
        super().__init__()
        self.workers = workers

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        ids = sorted(range(96), key=lambda number: (number % self.workers, number))
        start = self.next
        for first in range(start * 4, 96, 4):
            self.next += 1
            yield [{"id": number} for number in ids[first : first + 4]]
        self.next = 0


class Lengths(Right):
    """As many batches as it draws, of what it draws."""

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        draws = random.SystemRandom()
        for _ in range(draws.randrange(5, 40)):
            yield [{"id": draws.random()}]


class Noise(Right):
    """Of the samples with an id the content is drawn, in one of two runs."""

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        value = random.SystemRandom().randrange(2)
        for batch in super().__iter__():
            yield [{**sample, "x": value} for sample in batch]


class WithLocks(Right):
    """A field that has no content."""

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        for batch in super().__iter__():
            yield [{**sample, "lock": threading.Lock()} for sample in batch]


class Locks(Right):
    def __iter__(self) -> Iterator[Any]:
        for _ in super().__iter__():
            yield [threading.Lock()]


class Alike(Right):
    def __iter__(self) -> Iterator[Any]:
        for _ in super().__iter__():
            yield torch.zeros(2, 3)


class TwentyFive(Plain):
    def __len__(self) -> int:
        return 25


def distributed(rank: int = 0, world_size: int = 1, epoch: int = 0) -> Any:
    sampler = DistributedSampler(TwentyFive(), num_replicas=world_size, rank=rank, drop_last=True)
    sampler.set_epoch(epoch)
    return StatefulDataLoader(TwentyFive(), batch_size=3, sampler=sampler)


def overlapping(rank: int = 0, world_size: int = 1) -> Any:
    """Ranks that are equally long, of which each has half of the other's samples."""
    first = 6 * rank
    return DataLoader(torch.utils.data.Subset(Plain(), range(first, first + 24 - 6 * world_size)), batch_size=3)


class Waiting(Right):
    """Tells in a file that it is there with a process of its own, and waits."""

    def __iter__(self) -> Iterator[Any]:
        yield from next(super().__iter__())
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        told = Path(os.environ["AUDITED_TELLS"])
        told.with_suffix(".new").write_text(f"{os.getpid()} {os.getppid()} {child.pid}")
        told.with_suffix(".new").rename(told)
        child.wait()


class FromASet(Right):
    def __iter__(self) -> Iterator[Any]:
        for name in {"red", "green", "blue", "white", "black", "brown", "grey", "pink"}:
            yield [{"id": name}]


def ids(batch: Any) -> Any:
    return batch["id"]


def lazy_ids(batch: Any) -> Any:
    return (sample["id"] for sample in batch)


def wrong_ids(batch: Any) -> Any:
    return batch["no such field"]


def needs(path: str) -> Any:
    return Right()


number = 3
