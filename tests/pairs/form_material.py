"""What chains of forms read and call: files of each format, functions and nodes as users write them."""

from __future__ import annotations

import bz2
import copy
import gzip
import hashlib
import lzma
import random
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import torch

from tests.formats.test_tfrecord import WRITTEN
from tests.map.test_mds_file import numbered, write_mds
from tests.rings import added_by_rings
from tests.state.fuzz_graphs import safe
from tests.state.fuzz_nodes import connect, write_csv, write_json_lines, write_lines, write_table, write_tar, write_zip
from torchpipe import NodeIterator
from torchpipe.formats.storage.streams import StreamWrapper
from torchpipe.iter import IterableWrapper, IterDataPipe

__all__ = ["FORMATS", "WRITTEN_BY_CHAINS", "rewritten_files", "write_files"]  # the rest is for the registry


# --- files, beside which the graphs run: paths are relative, so that what is done with them is the same everywhere


def _write_json(path: Path, number: int) -> None:
    path.write_text(f'{{"n": {number}}}')


def _write_compressed(path: Path, number: int) -> None:
    pack: Callable[[bytes], bytes] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[path.suffix[1:]]
    path.write_bytes(pack("".join(f"{number} zwölf {line}\n\n" for line in range(5)).encode()))


def _write_arrow(path: Path, number: int) -> None:
    table = pyarrow.table({"a": list(range(number, number + 6)), "b": [str(line) for line in range(6)]})
    pyarrow.feather.write_feather(table, str(path), chunksize=3)


def _write_examples(path: Path, number: int) -> None:
    path.write_bytes(WRITTEN * (number + 1))


WRITERS: dict[str, Callable[[Path, int], None]] = {
    "txt": write_lines,
    "jsonl": write_json_lines,
    "csv": write_csv,
    "json": _write_json,
    "parquet": write_table,
    "arrow": _write_arrow,
    "tar": write_tar,
    "zip": write_zip,
    "tfrecord": _write_examples,
    "gz": _write_compressed,
    "bz2": _write_compressed,
    "xz": _write_compressed,
}
for _ring in added_by_rings("form_files"):
    WRITERS |= _ring.WRITERS
FORMATS = list(WRITERS)


def _write_with_bad_records(folder: Path, name: str, first: int) -> None:
    """Lines of JSON and rows of CSV of which some are wrong, and as many lines beside them that are right."""
    folder.mkdir(exist_ok=True)
    numbers = range(first, first + 7)
    wrong = {first + 1, first + 2, first + 6}
    lines = ["{bad" if number in wrong else str(number) for number in numbers]
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    rows = [f"{number},x" + ",more" * (number in wrong) for number in numbers]
    (folder / f"{name}.csv").write_text("\n".join(["a,b", *rows]) + "\n")
    (folder / f"{name} right.jsonl").write_text("".join(f"{number}\n" for number in numbers))


WRITTEN_BY_CHAINS = ("cached", "kept", "saved", "more saved")


def write_files(folder: Path, first: int = 0) -> None:
    """Three files of each format, in a folder of its name, and three more in one of another. Another ``first`` number
    makes other contents.
    """
    for ending, write in WRITERS.items():
        for number in range(6):
            path = folder / (ending if number < 3 else f"more {ending}") / f"{number % 3}.{ending}"
            path.parent.mkdir(exist_ok=True)
            write(path, first + number)
    for place, name in enumerate(("txt", "more txt")):
        _write_with_bad_records(folder / "bad", name, 10 * (first + place))
    np.save(folder / "tokens.npy", np.arange(first, first + 61, dtype=np.uint16))
    write_mds(folder / "mds", numbered(9 + first), compression="zstd", names=("a", "b"))
    write_mds(folder / "more mds", numbered(7 + first), names=("a", "b"))
    for number in range(6):
        path = folder / ("hive" if number < 3 else "more hive") / f"a={number % 3}" / "0.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = pyarrow.table({"b": [str(first + number + line) for line in range(6)]})
        pyarrow.parquet.write_table(rows, path, row_group_size=2)
    with connect(folder / "rows.sqlite") as database:
        database.execute("create table if not exists rows (a integer primary key, b text)")
        database.execute("delete from rows")
        database.executemany("insert into rows values (?, ?)", [(row, str(first + row)) for row in range(13)])
    database.close()


@contextmanager
def rewritten_files(folder: Path) -> Iterator[None]:
    """All of them have other contents meanwhile."""
    write_files(folder, 1)
    yield
    write_files(folder)


def hashes() -> dict[str, str]:
    """Of the files in the current folder, by their paths as nodes give them."""
    found = {}
    for path in sorted(Path().glob("*/*")):
        if path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found |= {str(path): digest, str(path.absolute()): digest}
    return found


# --- functions


@dataclass
class Hand:
    """How the functions behave: as they should ("plain"), giving numpy's or torch's numbers ("numpy", "torch"), or
    raising StopIteration for some items ("stops").
    """

    does: str = "plain"
    strikes: int = 0  # how often it did not behave

    @contextmanager
    def of(self, does: str) -> Iterator[Hand]:
        self.does, self.strikes = does, 0
        try:
            yield self
        finally:
            self.does = "plain"


HAND = Hand()


def by_hand(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn``, as the hand does it."""

    @wraps(fn)
    def call(*args: Any) -> Any:
        if HAND.does == "stops" and hashed(args[-1]) % 3 == 1:
            HAND.strikes += 1
            raise StopIteration
        made = fn(*args)
        if HAND.does in ("numpy", "torch") and isinstance(made, bool | int):
            HAND.strikes += 1
            return np.array(made)[()] if HAND.does == "numpy" else torch.tensor(made)
        return made

    return call


def label(item: Any) -> str:
    """The item as text, the same in each run: of a pair (path, stream) the path."""
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], StreamWrapper):
        return safe(item[0])
    return safe(item)


def content_of(pair: Any) -> Any:
    """Of a pair (path, stream), read."""
    path, stream = pair
    return path, stream.read()


def hashed(item: Any) -> int:
    return zlib.crc32(label(item).encode("utf-8", "replace"))


@by_hand
def wrap(item: Any) -> Any:
    return "wrapped", item


def moody(item: Any) -> Any:
    if hashed(item) % 5 == 3:
        raise ValueError("no")
    return item


def bad_lines(folder: str) -> str:
    return f"bad/{folder}.jsonl"


def right_lines(folder: str) -> str:
    return f"bad/{folder} right.jsonl"


def bad_rows(folder: str) -> str:
    return f"bad/{folder}.csv"


def good_records(path: str) -> list[Any]:
    """Of a file with bad ones."""
    lines = Path(path).read_text().splitlines()
    if path.endswith(".csv"):
        return [dict(zip("ab", row.split(","))) for row in lines[1:] if row.count(",") == 1]
    return [int(line) for line in lines if line.isdigit()]


class Kept:
    """Keeps most items, by their content."""

    def __init__(self, number: int) -> None:
        self.number = number

    @by_hand
    def __call__(self, item: Any) -> bool:
        return hashed(item) % (self.number + 4) != 0


@by_hand
def part(item: Any) -> int:
    return hashed(item) % 2


@by_hand
def key(item: Any) -> int:
    return hashed(item) % 3


@by_hand
def length(item: Any) -> int:
    return len(item) if isinstance(item, list) else 1 + hashed(item) % 4


@by_hand
def ordered(items: list[Any]) -> list[Any]:
    return sorted(items, key=hashed)


@by_hand
def pieces(item: Any) -> list[Any]:
    return [(place, item) for place in range(hashed(item) % 3)]


def steps(item: Any) -> Iterator[Any]:
    for place in range(2):
        yield place, item


def drawing_steps(item: Any) -> Iterator[Any]:
    for place in range(2):
        yield place, item, random.random()


def small_node(item: Any) -> Any:
    return IterableWrapper([(place, item) for place in range(3)]).shuffle(buffer_size=2)


@by_hand
def wrap_all(items: list[Any]) -> list[Any]:
    return [("of", len(items), item) for item in items]


async def awaited(item: Any) -> Any:
    return "awaited", item


@by_hand
def listed(item: Any) -> list[int]:
    return list(range(hashed(item) % 4 + 1))


def as_dict(item: Any) -> dict[str, Any]:
    return {"a": hashed(item) % 100, "b": label(item)[:20]}


def as_triple(item: Any) -> tuple[Any, int, int]:
    return item, hashed(item) % 100, hashed(item) % 7


def as_named(item: Any) -> tuple[str, str]:
    return f"{hashed(item)}.txt", f"{label(item)}\n\nend\n"


@by_hand
def sort_key(item: Any) -> int:
    return hashed(item)


def as_number(item: Any) -> int:
    return hashed(item) % 1000


def as_text(item: Any) -> str:
    return f"x{hashed(item) % 50}{{a,b}}"


def as_tensor(item: Any) -> torch.Tensor:
    return torch.full((2,), float(hashed(item) % 100))


def as_path(ending: str, item: Any) -> str:
    number = hashed(item)
    return f"{ending}/{number % 3}.{ending}"


@by_hand
def kept_file(item: Any) -> str:
    return f"kept/{hashed(item)}.txt"


def rendered(item: Any) -> tuple[str, str]:
    return kept_file(item), f"{label(item)}\nend\n"


@by_hand
def joined(items: list[Any]) -> Any:
    return len(items), *items


@by_hand
def place_of(item: Any) -> int:
    return hashed(item) % 50


def pair_with(by: int, item: Any) -> Any:
    return by, item


def holding(by: int) -> Callable[[Any], Any]:
    return lambda item: (by, item)


def flat(item: Any, places: list[int] | None) -> Any:
    made: list[Any] = []
    for place, value in enumerate(item):
        flattens = places is None or place in places
        made.extend(value if flattens and isinstance(value, list | tuple) else [value])
    return type(item)(made)


def rows(number: int) -> Any:
    count = 9 + number
    dataset = datasets.Dataset.from_dict({"a": [*range(count)], "b": [str(row) for row in range(count)]})
    return dataset.to_iterable_dataset(num_shards=2) if number % 2 else dataset


def length_of(graph: Any) -> int:
    """How many items there are, or too many."""
    try:
        return len(graph)
    except (TypeError, NotImplementedError):
        return 500


def bumped(value: Any) -> Any:
    """Another value of the same kind; what can be changed in place is."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}'" if isinstance(value, str) else spoiled(value)


def spoiled(item: Any) -> Any:
    """The item, changed in place as far as it can be: twice is not once."""
    if isinstance(item, list):
        item.extend([copy.deepcopy(bumped(part)) for part in item[:1]])  # what is in an item twice is two in a copy
    elif isinstance(item, dict):
        for name in list(item):
            item[name] = bumped(item[name])
    elif isinstance(item, tuple):
        for part in item:
            spoiled(part)
    elif isinstance(item, torch.Tensor) and item.dtype != torch.bool:
        item.add_(1)
    elif isinstance(item, np.ndarray) and item.dtype.kind in "iuf" and item.flags.writeable:
        item += 1
    return item


def spoiling(item: Any) -> bool:
    spoiled(item)
    return True


def spoiled_alone(item: Any) -> list[Any]:
    return [spoiled(item)]


def mutable(number: int, item: Any) -> Any:
    """Nested, ragged, a view of something large, or empty now and then."""
    value = hashed(item) % 50
    if number == 1:
        return {name: [value] * place for place, name in enumerate("abc"[: value % 3 + 1])}
    if number == 2:
        return {"x": np.arange(1000)[value : value + 3], "y": torch.arange(1000)[value : value + 6 : 2]}
    if number == 3:
        return [[], {}, [[value]], {"a": []}][value % 4]
    return {"a": [value, {"b": [str(value)]}], "c": value}


class Calls:
    """How often it was called: a function with a state."""

    def __init__(self) -> None:
        self.calls = 0

    @by_hand
    def __call__(self, item: Any) -> int:
        self.calls += 1
        return self.calls - 1

    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


class _Remembering(NodeIterator[Any]):
    """Hands out, beside each item, something of what came before: of each kind that can be saved by its name."""

    saved = ("count", "share", "recent", "by_third", "totals", "last")
    count, share, last = 0, 0.0, None
    recent: Any = deque(maxlen=3)
    by_third: Any = {}
    totals: Any = np.zeros(3, dtype=np.int64)

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            value = hashed(item) % 50
            self.count += np.int64(1)
            self.share = self.share / 2 + value
            self.recent.append([value])
            self.recent[0].append(self.count)
            self.by_third.setdefault(str(value % 3), []).append(value)
            del self.by_third[str(value % 3)][:-2]
            self.totals[value % 3] += value
            self.last, before = value, self.last
            told = [*map(list, self.recent)], dict(self.by_third), self.totals.tolist()
            yield item, self.node.number(int(self.count)), self.share, before, str(told)  # type: ignore[attr-defined]


class Remembers(IterDataPipe[Any]):
    """A node of the user's with a state, and a function that has one."""

    iterator = _Remembering

    def __init__(self, source: Any) -> None:
        self.source = source
        self.number = Calls()


class RemembersInMain(Remembers):
    """The same in the user's process."""

    runs_in_main = True


class Passing(IterDataPipe[Any]):
    """A node of the user's without a state: replayed."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        yield from self.source


class Late(IterDataPipe[Any]):
    """Another one, that reads all of its input when it is opened, and draws nothing."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        return iter([*self.source][::-1])
