"""L8 against a forger: a pickle hidden in every place of a state runs nowhere, and no state asks for much.

Every checksum is made right. The places are those of a state with a dispatcher, buffers, cursors within cursors and
ranks; they are tried in process, under workers with a dispatcher, and with services before them.
"""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import torch

from reading_services import MultiProcessingReadingService, SequentialReadingService
from tests.laws.executors import make_loader, make_service, oracle
from tests.services.ranks import Table, TogetherRank
from tests.state.forging import Nested, opened_deep, part, places, replaced, sealed, sealed_deep
from torchpipe import DataLoader2
from torchpipe.errors import StateError, StateMismatchError, UnsafeStateError
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper
from torchpipe.state import decode, encode, inspect


class Bomb:
    """Touches a file if anybody unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def dispatched() -> Any:
    graph = IterableWrapper(range(40)).shuffle(buffer_size=5).sharding_round_robin_dispatch()
    return graph.map(_pair).shuffle(buffer_size=4)


def _pair(item: Any) -> tuple[Any, str]:
    return item, repr(item)


def saved(graph: Any, workers: int | None = None, count: int = 12, **options: Any) -> dict[str, Any]:
    with make_loader(graph, make_service(workers, 2, every=2, **options)) as loader:
        iterator = iter(loader)
        for _ in range(count):
            next(iterator)
        return loader.state_dict()


def opaque(fuse: Path) -> list[Any]:
    return [msgpack.ExtType(8, b""), "posix.system", pickle.dumps(Bomb(fuse))]


def run(graph: Any, state: Any, service: Any) -> list[Any]:
    with DataLoader2(graph, reading_service=service) as loader:
        loader.load_state_dict(state)
        return list(loader)


def encoded_pickle(fuse: Path) -> bytes:
    """A state of its own that holds a pickle, as bytes."""
    return sealed(bytes(msgpack.packb({"iterator": opaque(fuse), "random": None})))


def test_L8_a_pickle_in_any_place_is_refused_before_anything_starts(tmp_path: Path) -> None:
    fuse = tmp_path / "exploded"
    graph = dispatched()
    state = saved(graph)
    content = opened_deep(state["payload"])
    tried = 0
    for path in places(content):
        if isinstance(part(content, path), msgpack.ExtType):
            continue  # a tag is no place for a value: the fuzz test tries that
        forged = state | {"payload": sealed_deep(replaced(content, path, lambda _: opaque(fuse)))}
        with DataLoader2(graph, reading_service=make_service(None, None)) as loader, pytest.raises(StateError):
            loader.load_state_dict(forged)
        try:
            inspect(forged)
        except StateError:  # a cursor without a snapshot, say
            pass
        tried += 1
    assert tried > 40  # the dispatcher's own snapshot, its buffer, and both shards' are among them
    assert not fuse.exists()


def test_L8_encoded_bytes_in_any_place_are_never_unpickled(tmp_path: Path) -> None:
    """Bytes that would be a state with a pickle, where data are expected: nobody takes them for a state."""
    fuse = tmp_path / "exploded"
    graph = dispatched()
    state = saved(graph)
    content = opened_deep(state["payload"])
    for path in places(content):
        if isinstance(part(content, path), msgpack.ExtType):
            continue
        forged = state | {"payload": sealed_deep(replaced(content, path, lambda _: encoded_pickle(fuse)))}
        try:
            run(graph, forged, make_service(None, None))
        except StateError:
            pass
    assert not fuse.exists()


def _snapshots(content: Any) -> list[tuple[Any, ...]]:
    return [path for path in places(content) if isinstance(part(content, path), Nested)]


@pytest.mark.parametrize("kind", ["workers", "sequential", "read back"])
def test_L8_the_dispatchers_snapshot_runs_nothing_under_workers(kind: str, tmp_path: Path) -> None:
    fuse = tmp_path / "exploded"
    graph = dispatched()
    state = saved(graph, 2)
    content = opened_deep(state["payload"])
    deepest = max(_snapshots(content), key=len)
    assert deepest.count("value") >= 1  # a snapshot within a snapshot: the dispatcher's
    for bad in (encoded_pickle(fuse), pickle.dumps(Bomb(fuse)), b"TPS"):
        forged = state | {"payload": sealed_deep(replaced(content, deepest, lambda _, bad=bad: bad))}
        if kind == "read back":
            file = io.BytesIO()
            torch.save(forged, file)
            file.seek(0)
            forged = torch.load(file, weights_only=True)
        service: Any = MultiProcessingReadingService(2)
        if kind == "sequential":
            service = SequentialReadingService(service)
        with pytest.raises(StateError):
            run(graph, forged, service)
    assert not fuse.exists()


def test_L8_a_refused_state_is_not_shipped_afterwards(tmp_path: Path) -> None:
    """A loader that has refused a state, and is iterated all the same, begins as if it had never seen it."""
    fuse = tmp_path / "exploded"
    graph = dispatched()
    state = saved(graph)
    content = opened_deep(state["payload"])
    forged = state | {"payload": sealed_deep(replaced(content, ("position",), lambda _: opaque(fuse)))}
    with make_loader(graph, make_service(2, 2)) as loader:
        with pytest.raises(UnsafeStateError):
            loader.load_state_dict(forged)
        assert [repr(item) for item in loader] == oracle(graph, 2)[0]
    assert not fuse.exists()


def test_L8_ranks_do_not_unpickle_what_is_below_their_agreement(tmp_path: Path) -> None:
    fuse = tmp_path / "exploded"
    graph = IterableWrapper(range(20)).shuffle(buffer_size=4).sharding_filter()
    with DataLoader2(graph, reading_service=TogetherRank(0, Table(1), "drop", 2)) as loader:
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        state = loader.state_dict()
    content = opened_deep(state["payload"])
    for bad in (opaque(fuse), encoded_pickle(fuse), pickle.dumps(Bomb(fuse)), 2**40, -1, None, [], {}):
        for path in places(content):
            if path[:1] != ("position",) or isinstance(part(content, path), msgpack.ExtType):
                continue
            forged = state | {"payload": sealed_deep(replaced(content, path, lambda _, bad=bad: bad))}
            try:
                run(graph, forged, TogetherRank(0, Table(1), "drop", 2))
            except StateError:
                pass
    assert not fuse.exists()


# --- what a state may ask for


def forged_numbers(state: dict[str, Any], **numbers: int) -> dict[str, Any]:
    content = opened_deep(state["payload"])
    return state | numbers | {"payload": sealed_deep(content | {"numbers": content["numbers"] | numbers})}


def test_L8_any_number_of_shards_is_not_granted() -> None:
    graph = IterableWrapper(range(9)).sharding_filter()
    with DataLoader2(graph, reading_service=make_service(None, 2)) as loader:
        state = loader.state_dict()
    for count in (2**31, 2**40, 5000):
        with pytest.raises(StateError, match=f"num_shards is {count}, and can be 1 to (4096|65536)"):
            run(graph, forged_numbers(state, num_shards=count), make_service(None, None))
    with pytest.raises(ValueError, match="num_shards must be at most 4096, got 5000"):
        make_service(None, 5000)


@pytest.mark.parametrize("change", [2**40, 2**61, 2**62, 2**63])
def test_L8_no_cursor_drops_more_than_was_delivered(change: int) -> None:
    graph = IterableWrapper(range(9)).cycle().sharding_filter().shuffle(buffer_size=3)
    state = saved(graph)
    content = opened_deep(state["payload"])
    for path in places(content):
        if type(part(content, path)) is int and "shards" in path and "value" not in path:  # a cursor's own numbers
            forged = state | {"payload": sealed_deep(replaced(content, path, lambda _: change))}
            with pytest.raises(StateError):
                run(graph, forged, make_service(None, None))
    cursor = replaced(content, ("position", "shards", 0, "cursor", 2), lambda _: change)
    cursor = replaced(cursor, ("position", "shards", 0, "cursor", 3), lambda _: change)
    counted = replaced(cursor, ("position", "counts", 0), lambda _: change)
    for forged_content in (cursor, counted):
        with pytest.raises(StateError, match="damaged"):
            run(graph, state | {"payload": sealed_deep(forged_content)}, make_service(None, None))


def _deep(levels: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


class Steps:
    """Read by index until an IndexError."""

    def __getitem__(self, index: int) -> int:
        if index >= 9:
            raise IndexError(index)
        return index


def steps(_: int) -> Steps:
    return Steps()


def opened(number: int) -> Any:
    return io.TextIOWrapper(io.BytesIO(f"{number}\n".encode() * 9), "utf-8")


def whole(_: int) -> float:
    return random.random()


LATER: dict[str, tuple[Callable[[], Any], str]] = {
    "key": (lambda: SequenceWrapper(list("abcdefghijklmnop")).shuffle().sharding_filter(), "key"),
    "index": (lambda: IterableWrapper(range(4)).sharding_filter().flatmap(steps), "index"),
    "place": (lambda: IterableWrapper(range(4)).sharding_filter().flatmap(opened), "place"),
    "torch": (lambda: IterableWrapper(range(40)).sharding_filter().map(whole), "torch"),
}
HOSTILE = [None, -1, 1.5, 2**40, 2**62, 2**63, "x", b"x", [], {}, [None], ["x"], [b"x"], [-1], [[1]], [{"x": 1}]]


@pytest.mark.parametrize("name", LATER)
def test_L8_what_is_used_later_is_a_state_error_too(name: str) -> None:
    """Values that are looked at when the pass goes on, if nobody looks at them before."""
    graph, key = LATER[name][0](), LATER[name][1]
    state = saved(graph, count=7)
    content = opened_deep(state["payload"])
    found = [path for path in places(content) if path and path[-1] == key]
    assert found
    refused = 0
    for path in found:
        for value in HOSTILE:
            forged = state | {"payload": sealed_deep(replaced(content, path, lambda _, value=value: value))}
            try:
                run(graph, forged, make_service(None, 2))
            except StateError:
                refused += 1
        forged = state | {"payload": sealed_deep(replaced(content, path[:-1], lambda _: {}))}
        with pytest.raises(StateError):
            run(graph, forged, make_service(None, 2))
    assert refused > 8 * len(found)


@pytest.mark.parametrize("levels", [50, 200, 450])
def test_L8_what_can_be_saved_however_deep_can_be_loaded(levels: int) -> None:
    graph = IterableWrapper([_deep(levels, lambda value: (value,)), 1, 2, 3], deepcopy=False).shuffle(buffer_size=4)
    with DataLoader2(graph, reading_service=make_service(None, 1, every=1)) as loader:
        iterator = iter(loader)
        first = [next(iterator)]
        state = loader.state_dict()
        rest = list(iterator)
    assert [*first, *run(graph, state, make_service(None, 1))] == [*first, *rest]
    inspect(state)


def test_L8_depth_that_no_state_has_is_refused() -> None:
    for data in (
        b"\x91" * 2000 + b"\x90",
        b"\x92\xc7\x00\x01" * 2000 + b"\x90",  # tuples in tuples
        b"\x81\xa1a" * 2000 + b"\x90",
        b"\xdd\xff\xff\xff\xff" * 500,  # lists of 4 billion items each
        b"\xdf\xff\xff\xff\xff" * 500,
        b"\xc6\xff\xff\xff\xff",
    ):
        with pytest.raises(StateError):
            decode(sealed(data))
        with pytest.raises(StateError):
            inspect(sealed(data))


def test_L8_snapshots_nested_without_end_are_refused() -> None:
    data = encode({"at": 1})
    for _ in range(100):
        data = sealed(bytes(msgpack.packb([msgpack.ExtType(12, b""), data, 0, 0])))
    with pytest.raises(StateError, match="nested more than"):
        decode(data)


def test_L8_the_old_format_is_refused_with_both_versions() -> None:
    graph = IterableWrapper(range(9)).sharding_filter()
    state = saved(graph, count=3)
    with pytest.raises(StateMismatchError, match="version 1, this torchpipe reads version 2"):
        run(graph, state | {"version": 1}, make_service(None, None))
    with pytest.raises(StateError, match="format version 1, this torchpipe reads version 2"):
        decode(b"TPS\x01\x81\xa1a\x01")


def test_L8_a_number_beside_the_payload_cannot_be_changed_alone() -> None:
    graph = IterableWrapper(range(9)).sharding_filter()
    state = saved(graph, count=3)
    for name in ("seed", "epoch", "delivered", "num_shards", "rank", "world_size"):
        with pytest.raises(StateError, match=f"{name} is {state[name] + 1}, but its payload belongs to {state[name]}"):
            run(graph, state | {name: state[name] + 1}, make_service(None, None))
