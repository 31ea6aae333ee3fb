"""Random generators that a map-style dataset holds: seeded for each batch as the global ones are, wherever they sit."""

from __future__ import annotations

import functools
import itertools
import os
import pickle
import random
import signal
import types
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, get_worker_info

from tests.data.datasets import Numbers
from torchpipe import DataLoader

LENGTH = 28


# -- holders, and generators in them ----------------------------------------------------------------------------------


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held

    def call(self) -> float:
        return drawn(self.held)

    __hash__ = None  # type: ignore[assignment]


class Holder:
    def __init__(self, held: Any) -> None:
        self.name, self.held = "holder", held


class Module(nn.Module):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held


class Row(list[Any]):
    pass


def with_default(held: Any) -> float:
    return drawn(held)


GENERATORS: dict[str, Callable[[], Any]] = {
    "python": lambda: random.Random(1),
    "pcg": lambda: np.random.default_rng(1),
    "sfc": lambda: np.random.Generator(np.random.SFC64(1)),
    "philox": lambda: np.random.Generator(np.random.Philox(1)),
    "twister": lambda: np.random.Generator(np.random.MT19937(1)),
    "legacy": lambda: np.random.RandomState(1),
    "legacy pcg": lambda: np.random.RandomState(np.random.PCG64(1)),
    "bits": lambda: np.random.PCG64DXSM(1),
    "torch": lambda: torch.Generator().manual_seed(1),
}
HASHED = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator, torch.Generator)
HOLDERS: dict[str, Callable[[Any], Any]] = {
    "list": lambda held: ["a", held],
    "tuple": lambda held: (1, held),
    "dict": lambda held: {"a": 1, "b": held},
    "ordered": lambda held: OrderedDict(b=held),
    "deque": lambda held: deque([held]),
    "row": lambda held: Row([held]),
    "set": lambda held: {held} if isinstance(held, (*HASHED, Holder)) else [held],
    "array": lambda held: np.array([None, held], dtype=object)[1:] if isinstance(held, (*HASHED, Holder)) else [held],
    "object": Holder,
    "slots": Slotted,
    "module": Module,
    "partial": lambda held: functools.partial(with_default, held=held),
    "method": lambda held: Slotted(held).call,
    "plain": lambda held: types.SimpleNamespace(held=held),
}


def drawn(held: Any) -> float:
    """The sum of a draw from each generator in it, and of one more of legacy normal numbers, held ready in pairs."""
    if isinstance(held, random.Random):
        return held.random() + held.gauss(0, 1)
    if isinstance(held, np.random.Generator):
        return held.random() + float(held.integers(1 << 20, dtype=np.uint32))
    if isinstance(held, np.random.RandomState):
        return held.rand() + held.randn()
    if isinstance(held, np.random.BitGenerator):
        return float(held.random_raw() >> 12)
    if isinstance(held, torch.Generator):
        return float(torch.rand((), generator=held))
    if isinstance(held, functools.partial):
        return held()
    if isinstance(held, types.MethodType):
        return held()
    if isinstance(held, dict):
        return sum(map(drawn, held.values()))
    if isinstance(held, list | tuple | deque | set | np.ndarray):
        return sum(map(drawn, held))
    return drawn(held.held) if hasattr(held, "held") else 0.0


def made(recipe: Any) -> Any:
    if isinstance(recipe, str):
        return GENERATORS[recipe]()
    return HOLDERS[recipe[0]](made(recipe[1])) if isinstance(recipe, tuple) else list(map(made, recipe))


class Draws(Numbers):
    def __init__(self, held: Any, length: int = LENGTH) -> None:
        super().__init__(length)
        self.held = held

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), drawn(self.held)


RECIPES = st.recursive(
    st.sampled_from(sorted(GENERATORS)),
    lambda inner: st.tuples(st.sampled_from(sorted(HOLDERS)), inner) | st.lists(inner, min_size=2, max_size=3),
    max_leaves=6,
)


def loader(dataset: Any, **options: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    return DataLoader(dataset, batch_size=4, shuffle=True, collate_fn=list, generator=generator, **options)


def streams(loader: DataLoader[Any], epochs: int = 2) -> list[list[Any]]:
    return [list(loader) for _ in range(epochs)]


@pytest.fixture(autouse=True)
def generator_put_back() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield


@given(recipe=RECIPES, advanced=st.integers(0, 5), cut=st.integers(0, 2 * (LENGTH // 4)))
@settings(max_examples=150, deadline=None)
def test_L1_L2_batches_do_not_depend_on_where_generators_stand(recipe: Any, advanced: int, cut: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = Draws(made(recipe))
        whole = list(itertools.chain(*streams(loader(dataset))))
        untouched = drawn(dataset.held)
        assert untouched == drawn(made(recipe))  # a loop does not lead them on

        other = pickle.loads(pickle.dumps(Draws(made(recipe))))
        for _ in range(advanced):
            drawn(other.held)
        first = loader(other)
        while first.epoch < cut // (LENGTH // 4):
            list(first)
        iterator = iter(first)
        for _ in range(cut % (LENGTH // 4)):
            next(iterator)
        state = first.state_dict()
        resumed = loader(dataset)
        resumed.load_state_dict(state)
        rest = []
        while resumed.epoch < 2:
            rest += list(resumed)
    assert rest == whole[cut:]
    assert len({value for batch in whole for _, value in batch}) > 1


# -- other processes --------------------------------------------------------------------------------------------------


class Bright:
    """As a transform of Albumentations: it has its pipeline's generators."""

    def set_random_state(self, rng: Any, py: Any) -> None:
        self.random_generator, self.py_random = rng, py

    def __call__(self, value: float) -> float:
        return value + self.random_generator.uniform() if self.py_random.random() < 0.7 else value


class Compose:
    """As Albumentations' of that name."""

    def __init__(self, transforms: list[Any], seed: int) -> None:
        self.transforms = transforms
        self.random_generator, self.py_random = np.random.default_rng(seed), random.Random(seed)
        for transform in transforms:
            transform.set_random_state(self.random_generator, self.py_random)

    def __call__(self, value: float) -> float:
        return functools.reduce(lambda value, transform: transform(value), self.transforms, value)


class Randomizable:
    """As MONAI's: all objects share the class's generator until they get one of their own, and keep what they drew."""

    R: np.random.RandomState = np.random.RandomState(5)
    drawn = 0.0

    def set_random_state(self, seed: int) -> Any:
        self.R = np.random.RandomState(seed)
        return self

    def __call__(self, value: float) -> float:
        self.drawn = self.R.uniform()
        self.axis = self.R.randint(1 << 16)
        return value + self.drawn + self.axis


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def forward(self, value: float) -> float:
        return value + float(torch.rand((), generator=self.generator))


def add(value: float, *, rng: random.Random) -> float:
    return value + rng.random()


class Pictures(Dataset[Any]):
    """``folder``: where a file says that a worker was killed."""

    def __init__(self, folder: Path | None = None) -> None:
        self.transforms: list[Any] = [
            Compose([Bright(), Bright()], seed=42),
            Randomizable(),
            Randomizable().set_random_state(3),
            nn.ModuleList([Noisy()])[0],
            functools.partial(add, rng=random.Random(7)),
        ]
        self.folder = folder

    def __len__(self) -> int:
        return LENGTH // 2

    def __getitem__(self, index: int) -> Any:
        if self.folder is not None and index == 6 and get_worker_info() is not None:
            path = self.folder / "killed"
            if not path.exists():
                path.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        value = 0.0
        for transform in self.transforms:
            value = transform(value)
        return index, value


def both(folder: Path | None = None) -> Any:
    return ConcatDataset([Subset(Pictures(folder), range(LENGTH // 2)), Pictures()])


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1},
        {"num_workers": 2, "prefetch_factor": 1},
        {"num_workers": 1, "multiprocessing_context": "spawn"},
        {"num_workers": 1, "multiprocessing_context": "forkserver"},
    ],
    ids=str,
)
def test_L1_L2_L3_batches_are_the_same_in_every_process(options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = streams(loader(both()))
        made_there = loader(both(), **options)
        assert streams(made_there) == whole
        assert whole[0] != whole[1]
        for epoch, cut, (before, behind) in itertools.product((0, 1), (0, 2, 5), ((options, {}), ({}, options))):
            if "multiprocessing_context" in options and (epoch, cut) != (1, 2):
                continue
            first = loader(both(), **before)
            for _ in range(epoch):
                list(first)
            iterator = iter(first)
            for _ in range(cut):
                next(iterator)
            state = first.state_dict()
            del iterator
            other = loader(both(), **behind)
            other.load_state_dict(state)
            rest = list(other)
            assert (epoch, cut, before, rest) == (epoch, cut, before, whole[epoch][cut:])


def test_L1_batches_are_the_same_in_workers_that_persist() -> None:
    options = {"num_workers": 1, "persistent_workers": True}
    wanted, got = (streams(loader(both(), **options | more)) for more in ({}, {"num_workers": 2}))
    assert got == wanted
    assert wanted[0] != wanted[1]


def test_L1_samples_that_go_apart() -> None:
    wanted = streams(loader(both(), fetch="samples"))
    assert streams(loader(both(), fetch="samples", num_workers=2)) == wanted
    assert wanted != streams(loader(both()))


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_L4_a_killed_worker(options: Any, tmp_path: Path) -> None:
    assert next(iter([list(loader(both(tmp_path), **options))])) == list(loader(both()))
    assert (tmp_path / "killed").exists()


def init(worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.held = np.random.default_rng(worker)


def test_L1_a_generator_of_worker_init_fn() -> None:
    wanted = streams(loader(Draws(None), num_workers=1, worker_init_fn=init))
    assert streams(loader(Draws(None), num_workers=2, worker_init_fn=init)) == wanted
    assert wanted[0] != wanted[1]


class Collates:
    def __init__(self) -> None:
        self.rng = random.Random(2)

    def __call__(self, samples: list[Any]) -> Any:
        return samples, self.rng.random()


def test_L1_a_generator_of_the_collate_fn() -> None:
    def made(workers: int) -> Any:
        torch.manual_seed(0)
        return streams(DataLoader(Numbers(LENGTH), batch_size=4, collate_fn=Collates(), num_workers=workers))

    assert made(0) == made(1) == made(2)


def test_L2_a_generator_that_the_loader_has_too() -> None:
    def run(workers: int) -> Any:
        generator = torch.Generator().manual_seed(4)
        shared = DataLoader(
            Draws(generator), batch_size=4, shuffle=True, collate_fn=list, generator=generator, num_workers=workers
        )
        return streams(shared)

    assert run(0) == run(1)


# -- what cannot be seeded --------------------------------------------------------------------------------------------


class Own(Numbers):
    def __init__(self, held: Any = None) -> None:
        super().__init__(LENGTH)
        self.held = held


class Iterates(Own):
    def __getitem__(self, index: int) -> Any:
        return index, next(self.held)


class Odd(random.Random):
    def getstate(self) -> Any:
        raise NotImplementedError


class Saves(Own):
    def state_dict(self) -> Any:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


class Of(Own):
    def __getitem__(self, index: int) -> Any:
        return index, self.held[index]


TOLD: list[tuple[Callable[[], Any], str]] = [
    (lambda: Iterates({"a": itertools.count()}["a"]), r"Iterates.held is an iterator \(count\)"),
    (lambda: Draws([Odd()]), r"Draws.held\[0\] is .*\(Odd\)"),
    (lambda: Draws([random.SystemRandom()]), r"SystemRandom\) that cannot be seeded"),
    (lambda: Draws({random.Random(1), random.Random(2)}), "in a set, whose order differs"),
    (lambda: Draws([random.Random(1) for _ in range(1200)]), "a container of more than 1,000"),
    (lambda: Subset(Saves(), range(LENGTH)), r"Subset.dataset is an object with a state_dict \(Saves\)"),
]


@pytest.mark.parametrize(
    ("workers", "make", "text"),
    [*((0, *told) for told in TOLD), *((1, *told) for told in TOLD[:2])],
    ids=itertools.count(),
)
def test_L7_what_cannot_be_seeded_is_told(workers: int, make: Callable[[], Any], text: str) -> None:
    with pytest.warns(UserWarning, match=text) as told:
        made = loader(make(), num_workers=workers, persistent_workers=workers > 0)
        streams(made)
    assert len({str(item.message) for item in told if "made by index" in str(item.message)}) == 1


class EachAnew(Own):
    def __getitem__(self, index: int) -> Any:
        self.held = np.random.default_rng(index)
        return index, self.held.random()


class Remembers(Own):
    """Caches, opens late, has drawn numbers as attributes: of no account."""

    opened = None

    def __getitem__(self, index: int) -> Any:
        self.cache = {**getattr(self, "cache", {}), index: index}
        self.opened = self.opened or Holder(3)
        self.last, self.axis = random.random(), random.randrange(9)
        return index


@pytest.mark.parametrize("make", [EachAnew, Remembers, lambda: Of([(str(i), i) for i in range(5000)]), both])
def test_nothing_is_told_of_what_depends_on_the_index(make: Callable[[], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        streams(loader(make()))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"worker_method": "thread", "num_workers": 2}, "all worker threads draw from it"),
        ({"worker_seeding": "torch"}, "worker_seeding='torch' leaves it as it is"),
        ({"worker_seeding": "torch", "num_workers": 1}, "worker_seeding='torch' leaves it as it is"),
    ],
    ids=str,
)
def test_L7_generators_that_are_not_seeded_are_told(options: Any, text: str) -> None:
    with pytest.warns(UserWarning, match=f"^Draws.held is a random generator, and {text}") as told:
        list(loader(Draws(random.Random(3)), **options))
    assert [warning.category for warning in told].count(UserWarning) == 1  # Python may warn of a fork as well


def test_worker_seeding_torch_leaves_them_as_torch_does() -> None:
    dataset, same = Draws(random.Random(3)), Draws(random.Random(3))
    with pytest.warns(UserWarning, match="leaves it as it is"):
        got = list(loader(dataset, worker_seeding="torch"))
    generator = torch.Generator().manual_seed(0)
    wanted = torch.utils.data.DataLoader(same, batch_size=4, shuffle=True, collate_fn=list, generator=generator)
    assert got == list(wanted)
