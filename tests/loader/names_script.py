"""A script of a user's: its classes are the same ones in each process, as the script has them by now.

``names_script.py FOLDER METHOD``: under a start method, or "in process". Also for ``python -m`` and ``python -c``. Uses
the states that it finds in the folder, and leaves its own there. Prints ``done``.
"""

from __future__ import annotations

import abc
import collections
import enum
import functools
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch.utils.data import Dataset

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper

T = TypeVar("T")


class Split(enum.Enum):
    TRAIN = 1
    TEST = 2
    FIRST = 1

    def seen(self) -> float:
        return RATE


class Access(enum.Flag):
    READ = 1
    WRITE = 2
    BOTH = 3


Level = enum.IntEnum("Level", "LOW HIGH")


@dataclass
class Record:
    number: int

    def seen(self) -> float:
        return RATE

    @functools.cached_property
    def twice(self) -> int:
        return 2 * self.number


@dataclass(frozen=True, slots=True)
class Point:
    x: int


class Pair(NamedTuple):
    first: int
    second: int


Triple = collections.namedtuple("Triple", "a b c")


class Outer:
    @dataclass
    class Inner:
        number: int


class Registry:
    found: list[type] = []

    def __init_subclass__(cls) -> None:
        cls.found.append(cls)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]


class Child(Registry):
    def __init__(self) -> None:
        self.number = 3


class Meta(type):
    def name(cls) -> str:
        return cls.__name__


class Made(Registry, metaclass=Meta):
    __slots__ = ("x",)


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self) -> int: ...


@Shape.register
class Square(Record):
    def area(self) -> int:
        assert isinstance(self, Shape)
        return self.number**2


class Box(dict[str, T], Generic[T]):
    pass


class Bad(Exception):
    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"{why} at {number}")
        self.number, self.why = number, why


class Odd(Exception):  # cannot be pickled as it is
    def __init__(self, *, number: int) -> None:
        super().__init__("odd")
        self.number, self.open = number, lambda: None


class Config:
    rate = 0.0


RATE = 0.0
KINDS: list[type] = []


class Checked(Dataset[Any]):
    """Compares what came with it with what is pickled by name."""

    def __init__(self, values: list[Any], error: type[Exception] | None = None, coded: bool = False) -> None:
        self.values, self.error, self.coded = values, error, coded
        self.kinds = [type(value) for value in values]
        self.pickled = [pickle.dumps(value) for value in values]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> Any:
        index = index.number if isinstance(index, Record) else index
        if self.error is Bad:
            raise Bad(index, "bad")
        if self.error is Odd:
            raise Odd(number=index)
        value = check(self.values[index], self.kinds[index], self.pickled[index])
        return (value, lambda: value) if self.coded else value


def check(value: Any, kind: type, pickled: bytes) -> Any:
    read = pickle.loads(pickled)
    assert type(value) is type(read) is kind, (value, read, kind)
    assert kind in KINDS, kind
    assert not isinstance(value, enum.Enum) or value is read
    assert isinstance(value, tuple) or value == read
    assert (Config.rate, RATE) == (0.5, 0.5), (Config.rate, RATE)
    assert not isinstance(value, (Split, Record)) or value.seen() == 0.5
    assert not isinstance(value, Record) or replace(value).twice == 2 * value.number
    assert not isinstance(value, Square) or value.area() == value.number**2
    assert [kind.__name__ for kind in Registry.found] == ["Child", "Made"]
    assert Child in Registry.found
    assert Made.name() == "Made"
    assert Split.FIRST is Split.TRAIN
    assert Access.BOTH == Access.READ | Access.WRITE
    return value


class Sent:
    """A function of a graph, and its last value is its state."""

    def __init__(self) -> None:
        self.last: Any = None

    def __call__(self, triple: tuple[Any, type, bytes]) -> Any:
        assert self.last is None or type(self.last) in KINDS, self.last
        self.last = check(*triple)
        return self.last

    def state_dict(self) -> dict[str, Any]:
        return {"last": self.last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.last = state["last"]


class Indices(torch.utils.data.Sampler[Any]):
    """Its indices are of a class of the script."""

    def __iter__(self) -> Iterator[Any]:
        return map(Record, range(len(KINDS)))

    def __len__(self) -> int:
        return len(KINDS)


def plain(batch: list[Any]) -> list[Any]:
    return batch


def main(values: list[Any]) -> None:
    global RATE
    warnings.simplefilter("ignore")
    folder, method = Path(sys.argv[1]), sys.argv[2]
    RATE = Config.rate = 0.5
    KINDS.extend(map(type, values))
    before = [(cls, name, value) for cls in KINDS for name, value in vars(cls).items()]
    workers = 0 if method == "in process" else 1
    options: dict[str, Any] = {"num_workers": workers, "collate_fn": plain}
    if workers:
        options["multiprocessing_context"] = method

    def arrived(items: Any) -> None:
        found = [item[0] if type(item) is tuple else item for item in items]
        assert [type(item) for item in found] == KINDS, found
        assert all(item is value for item, value in zip(found, values, strict=True) if isinstance(value, enum.Enum))
        assert all(isinstance(item, Made | Pair | Triple) or item == value for item, value in zip(found, values))

    for coded, fetch in ((False, "batches"), (True, "batches"), (False, "samples"))[: 3 if workers else 2]:
        with DataLoader(Checked(values, coded=coded), 2, sampler=Indices(), fetch=fetch, **options) as loader:
            arrived(item for batch in loader for item in batch)
    for error in (Bad, Odd):
        with DataLoader(Checked(values, error), **options) as loader:
            try:
                next(iter(loader))
            except error as raised:
                assert raised.number == 0
            else:
                raise AssertionError(error)

    def graph() -> Any:
        node = IterableWrapper([(value, type(value), pickle.dumps(value)) for value in values]).sharding_filter()
        service = MultiProcessingReadingService(
            workers, num_shards=1, multiprocessing_context=method if workers else None
        )
        return DataLoader2(node.map(Sent()).prefetch(2), reading_service=service)

    with graph() as loader:
        arrived(loader)
    if workers:
        with graph() as loader:
            items = iter(loader)
            first = next(items)
            os.kill(loader.reading_service.worker_pids()[0], signal.SIGKILL)
            arrived([first, *items])
    for path in sorted(folder.glob("*.pt")):
        taken, state = torch.load(path, weights_only=False)
        with graph() as loader:
            loader.load_state_dict(state, allow_pickle=True)
            arrived([*values[:taken], *loader])
    for taken in (1, len(values) - 3):
        with graph() as loader:
            items = iter(loader)
            for _ in range(taken):
                next(items)
            torch.save((taken, loader.state_dict()), folder / f"{method}-{taken}.pt")
    assert all(vars(cls)[name] is value for cls, name, value in before), "the classes are as they were"
    print("done")


if __name__ == "__main__":

    @dataclass
    class Late:
        number: int

    class LateSplit(enum.Enum):
        TRAIN = 1

    main(
        [
            *(Split.TEST, Access.BOTH, Level.HIGH, Record(1), Point(2), Pair(1, 2), Triple(1, 2, 3), Outer.Inner(4)),
            *(Child(), Made(), Square(5), Box(a=1), Late(6), LateSplit.TRAIN),
        ]
    )
