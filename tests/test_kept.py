"""What an object of the user's keeps in its attributes: seen wherever it is, and put back whole."""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from torchpipe.errors import StateError, StateMismatchError
from torchpipe.node.kept import Kept
from torchpipe.state import decode, encode


class Holder:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


class Slotted:
    __slots__ = ("__hidden", "rng")

    def __init__(self) -> None:
        self.rng, self.__hidden = random.Random(1), 3

    def look(self) -> Any:
        self.__hidden += 1
        return self.__hidden, self.rng.random()


def draw_torch(generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator))


MADE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "number": (lambda: Holder(count=0), lambda it: setattr(it, "count", it.count + 1) or it.count),
    "in an object": (lambda: Holder(inner=Holder(rng=random.Random(2))), lambda it: it.inner.rng.random()),
    "in a list": (lambda: Holder(rngs=[np.random.default_rng(3)]), lambda it: it.rngs[0].random()),
    "in a dict": (lambda: Holder(rngs={"a": np.random.RandomState(3)}), lambda it: it.rngs["a"].rand()),
    "in a tuple": (lambda: Holder(rngs=(torch.Generator().manual_seed(4),)), lambda it: draw_torch(it.rngs[0])),
    "in slots": (Slotted, lambda it: it.look()),
    "behind a method": (lambda: Holder(draw=random.Random(5).random), lambda it: it.draw()),
    "in a partial": (lambda: Holder(draw=functools.partial(draw_torch, torch.Generator())), lambda it: it.draw()),
    "a bit generator": (lambda: Holder(bits=np.random.PCG64(1)), lambda it: int(it.bits.random_raw())),
    "made when used": (
        lambda: Holder(rng=None),
        lambda it: (setattr(it, "rng", it.rng or random.Random(6)), it.rng.random())[1],
    ),
    "a new attribute": (lambda: Holder(), lambda it: vars(it).update(seen=vars(it).get("seen", 0) + 1) or it.seen),
    "a list in place": (lambda: Holder(order=[3, 1, 2]), lambda it: it.order.append(it.order.pop(0)) or list(it.order)),
    "a nested list": (lambda: Holder(rows=[[1], deque([2])]), lambda it: it.rows[0].append(1) or len(it.rows[0])),
    "a tensor": (lambda: Holder(weights=torch.ones(3)), lambda it: it.weights.add_(1).tolist()),
    "gone": (lambda: Holder(left=2), lambda it: vars(it).pop("left", "nothing")),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_L2_it_goes_on_in_another_one_and_back_to_its_start(name: str) -> None:
    make, step = MADE[name]
    expected = [step(item) for item in [make()] for _ in range(4)]
    for stop in range(4):
        used = make()
        kept = Kept(used)
        start = kept.now()
        assert [step(used) for _ in range(stop)] == expected[:stop]
        saved = decode(encode(kept.now()))  # it is plain data
        other = make()
        there = Kept(other)
        there.check(saved)
        there.put(saved)
        assert [step(other) for _ in range(4 - stop)] == expected[stop:]
        step(used)
        kept.put(saved)
        assert [step(used) for _ in range(4 - stop)] == expected[stop:], "taken back"
        kept.put(start)
        assert [step(used) for _ in range(4)] == expected, "taken back to the start"
        there.put(start)
        assert [step(other) for _ in range(4)] == expected, "the other one, to its own start"


DATA: dict[str, Callable[[], Any]] = {
    "a list": lambda: list(range(200_000)),
    "text": lambda: "ab" * (1 << 20),
    "an array": lambda: np.arange(1 << 18),
    "a strided tensor": lambda: torch.arange(1 << 19)[::2],
    "a dict of arrays": lambda: {"x": np.arange(1 << 18)},
    "records": lambda: [{"row": row, "text": f"row {row}"} for row in range(40_000)],
    "lists of lists": lambda: [[row, row] for row in range(80_000)],
}


@pytest.mark.parametrize("name", DATA)
def test_L2_data_are_read_by_their_owner_and_put_back_by_nobody(name: str) -> None:
    """Many read their data when they are first needed: nothing was there before, and nothing is in a state."""
    used, fresh, there_at_once = (
        Holder(rows=None, epoch=0),
        Holder(rows=None, epoch=0),
        Holder(rows=DATA[name](), epoch=0),
    )
    kept, there, at_once = Kept(used, at_most=1000), Kept(fresh, at_most=1000), Kept(there_at_once, at_most=1000)
    assert at_once.now() == []
    used.rows, used.epoch = DATA[name](), 1
    saved = decode(encode(kept.now()))
    assert len(encode(saved)) < 1000
    for other, owner in ((there, fresh), (at_once, there_at_once), (kept, used)):
        other.check(saved)
        other.put(saved)
        assert owner.epoch == 1
    assert fresh.rows is None, "to be read"
    assert there_at_once.rows is not None
    assert used.rows is not None


@pytest.mark.parametrize("name", ["a list", "an array", "a dict of arrays", "records"])
def test_L7_data_that_have_changed_are_refused_by_name(name: str) -> None:
    used, fresh = Holder(rows=DATA[name]()), Holder(rows=DATA[name]())
    kept, there = Kept(used, at_most=1000), Kept(fresh, at_most=1000)
    rows = used.rows["x"] if isinstance(used.rows, dict) else used.rows
    rows[:] = rows[::-1].copy()
    saved = kept.now()
    with pytest.raises(StateError, match=r"Holder.rows has other data .* 1000 kB .*state_dict"):
        there.check(saved)
    kept.check(saved)
    kept.put(saved)
    with pytest.raises(StateError, match=r"Holder.rows has other data"):
        kept.put([])


def test_L8_a_state_sets_nothing_that_an_object_does_not_keep() -> None:
    class Own(Holder):
        def __iter__(self) -> Any:
            return iter(())

        def order(self) -> None: ...

    kept = Kept(Own(count=1, inner=Holder(rng=random.Random(0))))
    for steps in (
        ["order"],
        ["__class__"],
        ["__iter__"],
        ["inner", "rng", "seed", "x"],
        ["other", "count"],
        ["a b"],
        [3],
    ):
        with pytest.raises(StateMismatchError, match="has no place for it"):
            kept.check([[steps, "value", 1]])
    for saved in (None, [3], [[["count"], "code", 1]], [[["inner", "rng"], "random.Random", 3]], [[[], "value", 1]]):
        with pytest.raises(StateError, match="damaged"):
            kept.check(saved)


def test_L7_what_cannot_be_put_back_is_told() -> None:
    class Frozen:
        __slots__ = ("count",)

        def __setattr__(self, name: str, value: Any) -> None:
            raise AttributeError("frozen")

    frozen = Frozen()
    object.__setattr__(frozen, "count", 1)
    kept = Kept(frozen)
    object.__setattr__(frozen, "count", 2)
    with pytest.raises(StateError, match=r"Frozen.count cannot be put back .*frozen"):
        kept.put([])
