"""The states that the fuzz test starts from, and what it does to them: the same seed makes the same mutations."""

from __future__ import annotations

import pathlib
import pickle
import random
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgpack

from tests.exact import exact
from tests.state.forging import Nested, opened_deep, part, places, replaced, sealed_deep
from tests.state.fuzz_graphs import AHEAD, safe
from torchpipe import InProcessReadingService
from torchpipe.loader.dataloader2 import DataLoader2
from torchpipe.state import SnapshotPolicy

__all__ = ["Saved", "flat_mutation", "forgery", "noise", "stream_of"]

_MOST_ITEMS = 60  # of a stream that is compared


def _service(name: str) -> InProcessReadingService:
    return InProcessReadingService(AHEAD.get(name, 0), policy=lambda: SnapshotPolicy(every=2))


@dataclass
class Saved:
    """A real state, and the stream after it."""

    name: str
    graph: Any
    state: dict[str, Any]
    expected: list[str]


def stream_of(saved: Saved, state: Any) -> list[str]:
    """The stream after ``state``, in process. Raises: what loading or iterating raises."""
    with DataLoader2(saved.graph, reading_service=_service(saved.name)) as loader:
        loader.load_state_dict(state)
        return [_text(item) for item in islice(loader, _MOST_ITEMS)]


def _text(item: Any) -> str:
    try:
        return exact(item)
    except Exception:  # a forger's
        return safe(item)


# --- mutations of bytes and of the outer dict

_ODD_VALUES: list[Any] = [
    None, True, -1, 0, 1, 2, 7, 2**31, 2**40, 2**62, 2**63, 2**64, -(2**63), 0.5, float("nan"), "", "x", b"", b"TPS",
    [], {}, [0], [[]], {"a": 1}, [None] * 50,
]  # fmt: skip


def noise(random: random.Random, saved: Saved, other: Saved) -> dict[str, Any]:
    """The state with other bytes in its payload, and a checksum that is as it was."""
    data = bytearray(saved.state["payload"])
    match random.randrange(6):
        case 0 | 1:
            place = random.randrange(8 * len(data))
            data[place // 8] ^= 1 << place % 8
        case 2:
            del data[random.randrange(len(data)) :]
        case 3:
            place = random.randrange(len(data))
            data[place : place + random.randrange(1, 30)] = random.randbytes(random.randrange(30))
        case 4:
            first, second = sorted(random.sample(range(len(data)), 2))
            data[first:second] = data[second : second + random.randrange(1, 100)]
        case _:
            strange = other.state["payload"]
            place = random.randrange(min(len(data), len(strange)))
            data[place:] = strange[place:]
    return saved.state | {"payload": bytes(data)}


def flat_mutation(random: random.Random, saved: Saved, other: Saved) -> dict[str, Any]:
    """The state with another value for a key, another state's, or without it."""
    key = random.choice(list(saved.state))
    state = dict(saved.state)
    match random.randrange(4):
        case 0:
            state[key] = other.state[key]
        case 1:
            del state[key]
        case 2 if type(state[key]) is int:
            state[key] += random.choice([-1, 1, 2, 100, 2**40])
        case _:
            state[key] = random.choice([*_ODD_VALUES, 2 ** random.randrange(20000)])
    return state


# --- forgeries: another structure, every checksum right


class Bomb:
    """Touches a file if anybody unpickles it."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return pathlib.Path.touch, (self.path,)


def _tag(code: int, *parts: Any) -> list[Any]:
    return [msgpack.ExtType(code, b""), *parts]


def _hostile(random: random.Random, fuse: pathlib.Path) -> Any:
    """A value that no honest state has in most places."""
    match random.randrange(8):
        case 0:
            deep: Any = []
            for _ in range(random.choice([3, 60, 200])):
                deep = [deep] if random.randrange(2) else {"inputs": [deep]}
            return deep
        case 1:
            return _tag(random.randrange(50), *random.choices(_PACKABLE, k=random.randrange(5)))
        case 2:
            return _tag(8, "os.system", pickle.dumps(Bomb(fuse)))
        case 3:
            return pickle.dumps(Bomb(fuse))
        case 4:
            return _tag(12, random.choice([None, b"TPS", pickle.dumps(Bomb(fuse))]), *random.choices(_COUNTS, k=2))
        case 5:
            return _tag(40, "os", random.choice(["system", "PathLike", "stat_result"]), "tuple", ["a"], 1)
        case _:
            return random.choice(_PACKABLE)


_PACKABLE = [value for value in _ODD_VALUES if not (type(value) is int and not -(2**63) <= value < 2**64)]
_COUNTS = [0, 1, 2, 5, 40, 2**40, 2**61, -1, None]


def forgery(random: random.Random, saved: Saved, other: Saved, fuse: pathlib.Path) -> dict[str, Any]:
    """The state with something else somewhere inside, with right checksums; in one case of four in two places."""
    payload = None
    while payload is None:
        content = opened_deep(saved.state["payload"])
        for _ in range(random.choice([1, 1, 1, 2])):
            content = _change(random, content, other, fuse)
        try:
            payload = sealed_deep(content)
        except ValueError:  # one deep value within the other: more levels than msgpack packs
            continue
    state = dict(saved.state)
    numbers = content.get("numbers") if isinstance(content, dict) else None
    if isinstance(numbers, dict) and random.randrange(2):  # beside the payload as well
        state |= {key: value for key, value in numbers.items() if isinstance(key, str) and key in state}
    return state | {"payload": payload}


def _change(random: random.Random, content: Any, other: Saved, fuse: pathlib.Path) -> Any:
    everywhere = places(content)
    path = random.choice(everywhere)
    found = part(content, path)
    match random.randrange(7):
        case 0 if type(found) is int:
            return replaced(content, path, lambda value: value + random.choice([-1, 1, 2, 1000, 2**40]))
        case 1 if isinstance(found, list | dict) and found:
            return replaced(content, path, lambda value: _without(random, value))
        case 2 if isinstance(found, list) and found:
            return replaced(content, path, lambda value: value + random.choices(value, k=random.choice([1, 3, 300])))
        case 3:  # another part of this state
            from_here = part(content, random.choice(everywhere))
            return replaced(content, path, lambda _: _bare(from_here))
        case 4:  # a part of another graph's state
            strange = opened_deep(other.state["payload"])
            from_there = part(strange, random.choice(places(strange)))
            return replaced(content, path, lambda _: _bare(from_there))
        case 5 if isinstance(found, dict) and found:
            return replaced(content, path, lambda value: _renamed(random, value))
        case _:
            return replaced(content, path, lambda _: _hostile(random, fuse))


def _bare(value: Any) -> Any:
    return value.value if isinstance(value, Nested) else value


def _without(random: random.Random, value: Any) -> Any:
    copy = value.copy() if isinstance(value, dict) else list(value)
    del copy[random.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))]
    return copy


def _renamed(random: random.Random, value: dict[Any, Any]) -> dict[Any, Any]:
    copy = dict(value)
    old = random.choice(list(copy))
    copy[random.choice(["inputs", "cursor", "x", 5, "functions", "position"])] = copy.pop(old)
    return copy
