"""Objects of users that keep something from pass to pass, of any kind and in any nesting, and what they then draw.

``specs()`` draws a description, ``make`` an object of it, always alike; ``draw`` changes every place in that object
where something is kept, and returns what was there. Objects that several hold are shared.
"""

from __future__ import annotations

import argparse
import array
import collections
import dataclasses
import enum
import functools
import itertools
import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

__all__ = ["LEAVES", "Box", "Frozen", "OwnList", "Pair", "Plain", "draw", "make", "order_of", "specs"]


class Box:
    """Holds what a leaf keeps."""

    def __init__(self, name: str, **values: Any) -> None:
        self.name = name
        vars(self).update(values)


class Slotted:
    __slots__ = ("__count", "inner")

    def __init__(self, inner: Any = None) -> None:
        self.__count, self.inner = 0, inner

    def next(self) -> int:
        self.__count += 1
        return self.__count


class OwnList(list[Any]):
    pass


class OwnDict(dict[Any, Any]):
    pass


class OwnSet(set[Any]):
    pass


class OwnInt(int):
    pass


class OwnText(str):
    __slots__ = ()


class Pair(NamedTuple):
    count: Any
    rest: Any = ()


class Turn(enum.IntEnum):
    LEFT, RIGHT, BACK = range(3)


class Sides(enum.Flag):
    NORTH, SOUTH, WEST = enum.auto(), enum.auto(), enum.auto()


@dataclasses.dataclass
class Plain:
    count: Any
    rest: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    count: Any
    rest: Any = None


class WithState:
    """Says itself what pickle is to keep of it."""

    def __init__(self) -> None:
        self.count, self.cache = 0, "large"

    def __getstate__(self) -> dict[str, Any]:
        return {"count": self.count}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.count, self.cache = state["count"], "made again"


def up(box: Box, key: Any = 0) -> int:
    box.x[key] += 1
    return int(box.x[key])


def to(box: Box, value: Any, shown: Any = None) -> Any:
    box.x = value
    return repr(value) if shown is None else shown


def shuffled(box: Box) -> Any:
    random.Random(len(box.x) + int(box.x[0])).shuffle(box.x)
    return [int(item) for item in box.x]


def views(x: Any) -> Box:
    return Box("", x=x, head=x[1:4], row=x.reshape(2, 3)[1])


def see(box: Box) -> Any:
    box.head += 1
    box.row[0] *= 2
    return box.x.tolist()


def replace_views(box: Box) -> Any:
    box.x = box.x[[*range(1, 6), 0]]
    box.head, box.row = box.x[1:4], box.x.reshape(2, 3)[1]
    return see(box)


def share_anew(box: Box) -> Any:
    box.x = box.y = [*box.x, len(box.x)]
    box.y.append(7)
    return len(box.x)


def later(box: Box) -> Any:
    box.x = box.x or random.Random(3)
    box.y = [*(box.y or [Pair(0)]), Plain(1, [2])]
    return box.x.random(), repr(box.y)


def leave(box: Box) -> Any:
    vars(box)["y"] = vars(box).pop("x", 0) + 1
    vars(box).pop("w", None)
    return sorted(vars(box)), box.y


def thousand(box: Box) -> int:
    for item in box.x:
        item.count += 1
    return int(box.x[-1].count)


def deep(depth: int) -> Any:
    made: Any = Plain(0)
    for _ in range(depth):
        made = Plain(made)
    return made


def dig(box: Box) -> int:
    item = box.x
    while isinstance(item.count, Plain):
        item = item.count
    item.count += 1
    return int(item.count)


def rebind(box: Box) -> int:
    box.x = functools.partial(int, box.x() + 1)
    return int(box.x())


def alternate(box: Box) -> int:
    box.y = box.x[box.y is len]
    return int(box.y([3]))


def tensors(numbers: int) -> torch.Tensor:
    return torch.arange(numbers, dtype=torch.float64)


LEAVES: dict[str, tuple[Callable[[], Box], Callable[[Box], Any]]] = {
    "number": (lambda: Box("", x=0), lambda box: to(box, box.x + 1)),
    "list": (lambda: Box("", x=[0]), up),
    "list in place": (lambda: Box("", x=list(range(5))), shuffled),
    "long list": (lambda: Box("", x=list(range(20_000))), lambda box: (up(box, 9_999), up(box, -1))),
    "list of a class": (lambda: Box("", x=OwnList([0])), up),
    "dict": (lambda: Box("", x={0: 0}), up),
    "dict of a class": (lambda: Box("", x=OwnDict({0: 0})), up),
    "ordered": (lambda: Box("", x=collections.OrderedDict(a=1, b=2)), lambda box: box.x.move_to_end("a") or [*box.x]),
    "defaultdict": (lambda: Box("", x=collections.defaultdict(int)), up),
    "Counter": (lambda: Box("", x=collections.Counter()), up),
    "UserDict": (lambda: Box("", x=collections.UserDict({0: 0})), up),
    "UserList": (lambda: Box("", x=collections.UserList([0])), up),
    "ChainMap": (lambda: Box("", x=collections.ChainMap({0: 0})), up),
    "Namespace": (lambda: Box("", x=argparse.Namespace(n=0)), lambda box: up(Box("", x=vars(box.x)), "n")),
    "deque": (lambda: Box("", x=collections.deque([1, 2], 4)), lambda box: box.x.append(box.x[-1] * 3) or [*box.x]),
    "set": (lambda: Box("", x={1}), lambda box: box.x.add(len(box.x) * 7) or sorted(box.x)),
    "set of a class": (lambda: Box("", x=OwnSet({1})), lambda box: box.x.add(len(box.x) * 7) or sorted(box.x)),
    "array": (lambda: Box("", x=array.array("q", [0])), lambda box: (box.x.append(len(box.x)), up(box), len(box.x))),
    "bytearray": (lambda: Box("", x=bytearray(b"a")), lambda box: (box.x.append(len(box.x)), bytes(box.x))[1]),
    "named tuple": (lambda: Box("", x=Pair([0])), lambda box: up(Box("", x=box.x.count))),
    "other named tuple": (lambda: Box("", x=Pair(0)), lambda box: to(box, Pair(box.x.count + 1))),
    "named tuples": (lambda: Box("", x=(Pair(0), Pair(1))), lambda box: to(box, (box.x[1], Pair(len(repr(box.x)))))),
    "enum": (lambda: Box("", x=Turn.LEFT), lambda box: to(box, Turn((box.x + 1) % 3))),
    "flag": (lambda: Box("", x=Sides.NORTH), lambda box: to(box, Sides(box.x.value % 7 + 1))),
    "int of a class": (lambda: Box("", x=OwnInt(0)), lambda box: to(box, OwnInt(box.x + 1))),
    "text of a class": (lambda: Box("", x=OwnText("a")), lambda box: to(box, OwnText(box.x + "b"))),
    "frozen": (lambda: Box("", x=Frozen([0])), lambda box: up(Box("", x=box.x.count))),
    "other frozen": (lambda: Box("", x=Frozen(0, [])), lambda box: to(box, Frozen(box.x.count + 1, box.x.rest))),
    "slots": (lambda: Box("", x=Slotted()), lambda box: box.x.next()),
    "own state": (lambda: Box("", x=WithState()), lambda box: up(Box("", x=vars(box.x)), "count")),
    "array of numpy": (lambda: Box("", x=np.arange(5)), shuffled),
    "views of numpy": (lambda: views(np.arange(6.0)), see),
    "other views of numpy": (lambda: views(np.arange(6.0)), replace_views),
    "strings of numpy": (lambda: Box("", x=np.array(["ab", "c"])), lambda box: (box.x.sort(), to(box, box.x[::-1]))[1]),
    "objects of numpy": (
        lambda: Box("", x=np.array([[0], [0, 1]], dtype=object)),
        lambda box: up(Box("", x=box.x[0])),
    ),
    "tensor": (lambda: Box("", x=tensors(3)), lambda box: box.x.add_(1).tolist()),
    "views of torch": (lambda: views(tensors(6)), see),
    "other views of torch": (lambda: views(tensors(6)), replace_views),
    "two names": (lambda: (lambda x: Box("", x=x, y=Box("", x=x)))(np.zeros(2)), lambda box: up(box) + box.y.x[0]),
    "two new names": (lambda: Box("", x=[], y=None), share_anew),
    "random": (lambda: Box("", x=random.Random(1)), lambda box: box.x.random()),
    "method of random": (lambda: Box("", x=random.Random(1).random), lambda box: box.x()),
    "numpy's": (lambda: Box("", x=np.random.default_rng(2)), lambda box: box.x.random()),
    "numpy's old": (lambda: Box("", x=np.random.RandomState(2)), lambda box: box.x.rand()),
    "torch's": (
        lambda: Box("", x=functools.partial(torch.rand, (), generator=torch.Generator())),
        lambda box: float(box.x()),
    ),
    "other partial": (lambda: Box("", x=functools.partial(int, 0)), rebind),
    "count": (lambda: (lambda x: Box("", x=x, y=[x]))(itertools.count()), lambda box: (next(box.x), next(box.y[0]))),
    "cycle": (lambda: Box("", x=itertools.cycle("abc")), lambda box: next(box.x)),
    "cycle of two": (lambda: Box("", x=itertools.cycle([1, 2])), lambda box: next(box.x)),
    "iterator": (lambda: Box("", x=iter(list(range(99)))), lambda box: next(box.x)),
    "enumerate": (lambda: Box("", x=enumerate(iter(range(99)))), lambda box: next(box.x)),
    "made when used": (lambda: Box("", x=None, y=None), later),
    "come and gone": (lambda: Box("", x=1, w=2), leave),
    "1001 objects": (lambda: Box("", x=[Plain(0) for _ in range(1001)]), thousand),
    "deep": (lambda: Box("", x=deep(60)), dig),
    "holds itself": (
        lambda: (lambda box: vars(box).update(me=[box]) or box)(Box("", x=0)),
        lambda box: to(box.me[0], box.x + 1),
    ),
    "one of two functions": (lambda: Box("", x=[len, sum], y=None), alternate),
}  # fmt: skip

HOLDERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "list of a class": OwnList,
    "tuple": tuple,
    "dict": lambda items: {f"key {number}": item for number, item in enumerate(items)},
    "dict of a class": lambda items: OwnDict(enumerate(items)),
    "UserDict": lambda items: collections.UserDict(enumerate(items)),
    "deque": collections.deque,
    "named tuple": lambda items: Pair(items[0], items[1:]),
    "frozen": lambda items: Frozen(items[0], items[1:]),
    "plain": lambda items: Plain(items[0], items[1:]),
    "slots": Slotted,
    "objects of numpy": lambda items: Box("holder", x=np.array([*items, None], dtype=object)),
    "partial": lambda items: functools.partial(max, *items),
    "twice": lambda items: [items[0], *items],
}


def specs(*, leaves: int = 6) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.sampled_from(sorted(LEAVES)),
        lambda inner: st.tuples(st.sampled_from(sorted(HOLDERS)), st.lists(inner, min_size=1, max_size=3)),
        max_leaves=leaves,
    )


def make(spec: Any) -> Any:
    if isinstance(spec, str):
        box = LEAVES[spec][0]()
        box.name = spec
        return box
    holder, inner = spec
    return HOLDERS[holder]([make(item) for item in inner])


def _boxes(item: Any, seen: set[int]) -> Iterator[Box]:
    if id(item) in seen:
        return
    seen.add(id(item))
    if isinstance(item, Box):
        if item.name != "holder":
            yield item
            return
        item = list(item.x)
    if isinstance(item, collections.UserDict | dict):
        inner = list(item.values())
    elif isinstance(item, list | tuple | collections.deque):
        inner = list(item)
    elif isinstance(item, Frozen | Plain):
        inner = [item.count, item.rest]
    elif isinstance(item, Slotted):
        inner = [item.inner]
    else:
        inner = list(item.args) if isinstance(item, functools.partial) else []
    for part in inner:
        yield from _boxes(part, seen)


def draw(kept: Any) -> list[Any]:
    """A shared box draws once."""
    return [repr(LEAVES[box.name][1](box)) for box in _boxes(kept, set())]


def order_of(drawn: list[Any], length: int) -> list[int]:
    order = list(range(length))
    random.Random(zlib.crc32(repr(drawn).encode())).shuffle(order)
    return order
