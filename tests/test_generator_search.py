"""The walk over users' objects for the random generators that these hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from torchpipe.randomness.generators import GENERATORS
from torchpipe.values.generator_search import GeneratorSearch


def found_in(*roots: Any) -> GeneratorSearch:
    return GeneratorSearch(roots, lambda module: False)


class Held:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Spiteful:
    """Raises wherever code of its own is asked."""

    def _raise(self, *_: Any) -> Any:
        raise RuntimeError("asked")

    __getattr__ = __len__ = __iter__ = __eq__ = __hash__ = __bool__ = __repr__ = _raise  # type: ignore[assignment]
    __class__ = property(_raise)  # type: ignore[assignment]


class SpitefulRow(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("asked")

    __len__ = __getitem__ = __iter__  # type: ignore[assignment]


class SpitefulDict(dict[Any, Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("asked")

    __len__ = items = keys = values = __iter__  # type: ignore[assignment]


class SpitefulSet(set[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("asked")

    __len__ = __iter__  # type: ignore[assignment]


@pytest.mark.parametrize("make", [SpitefulRow, lambda held: SpitefulDict(enumerate(held)), SpitefulSet])
def test_nothing_of_users_objects_is_run(make: Callable[[list[Any]], Any]) -> None:
    rng = random.Random(1)
    found = found_in(Held(first=Spiteful(), then=make([rng])))
    assert [item is rng for item in found.generators.values()] == [True]


def test_what_refers_to_itself_is_looked_at_once() -> None:
    rng = np.random.default_rng(1)
    one, other = Held(rng=rng), [rng]
    one.other, one.own = other, one
    other.append(one)
    assert list(found_in(one, other).generators) == ["0/.rng"]


def test_generators_of_the_process_are_not_among_them() -> None:
    held = [
        *(random.random, np.random.rand, torch.default_generator, np.random.seed),
        np.random.get_bit_generator(),  # type: ignore[attr-defined]
        np.random.Generator(np.random.get_bit_generator()),  # type: ignore[attr-defined]
    ]
    found = found_in(Held(held=held))
    assert not found.generators
    assert not found.lost


def test_a_long_container_is_data() -> None:
    class Sample:
        looked_at = 0

        @property
        def __dict__(self) -> Any:
            Sample.looked_at += 1
            return {}

    found_in(Held(samples=[Sample() for _ in range(100_000)], names=["a"] * 3_000_000))
    assert 0 < Sample.looked_at <= 100


def test_they_are_called_by_what_leads_to_them() -> None:
    own, other = random.Random(1), np.random.RandomState(1)

    def draw(*, rng: Any = own) -> float:
        return rng.random() + other.random()

    found = found_in(Held(transforms=[draw], by_name={"a": {3: torch.Generator()}}))
    names = {found.name(path) for path in found.generators}
    assert names == {"Held.transforms[0](variable 0)", "Held.transforms[0](rng)", "Held.by_name['a'][3]"}
    assert all(isinstance(value, GENERATORS) for value in found.generators.values())


def test_two_classes_of_one_name_have_one_each() -> None:
    def made() -> Any:
        class Same:
            R = random.Random(1)

        return Same()

    found = found_in([made(), made()])
    assert len({id(value) for value in found.generators.values()}) == 2
