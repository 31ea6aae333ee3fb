"""``on_error("skip")`` within what a node opens or repeats: what it left out stays told when that is over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.laws.executors import make_service
from torchpipe import DataLoader2
from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper, JsonlReader, PathList
from torchpipe.node.datapipe import iterate
from torchpipe.state import left_out
from torchpipe.state.left_out import LEFT_OUT
from torchpipe.testing import check_node

LINES = 6
BAD = {1, 4}  # of each file


def tolerant(path: str) -> Any:
    return JsonlReader(path).on_error("skip", budget=len(BAD))


def begun(path: str) -> Any:
    return iter(tolerant(path))


def nested(path: str) -> Any:
    return IterableWrapper([path, path]).flatmap(tolerant)


def twice(path: str) -> Any:
    return tolerant(path).cycle(2)


FORMS: dict[str, Callable[[Any], Any]] = {
    "flatmap": lambda paths: paths.flatmap(tolerant),
    "interleave": lambda paths: paths.interleave(tolerant, cycle_length=2),
    "flatmap of iterators": lambda paths: paths.flatmap(begun),
    "flatmap of flatmap": lambda paths: paths.flatmap(nested),
    "interleave of flatmap": lambda paths: paths.interleave(nested, cycle_length=2),
    "flatmap of cycle": lambda paths: paths.flatmap(twice),
}


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    for file in range(3):
        lines = ["{bad" if number in BAD else str(file * 10 + number) for number in range(LINES)]
        (tmp_path / f"{file}.jsonl").write_text("\n".join(lines) + "\n")
    return [str(tmp_path / f"{file}.jsonl") for file in range(3)]


def texts(state: Any) -> list[Any]:
    count, noted = left_out(state)
    assert len(noted) == count
    return sorted(noted)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_left_out_within_stays_told(form: str, paths: list[str]) -> None:
    def make() -> Any:
        return FORMS[form](PathList(paths))

    times = 2 if form.split()[-1] in ("flatmap", "cycle") and " of " in form else 1
    stream = iterate(make())
    items = list(stream)
    assert len(items) == times * 3 * (LINES - len(BAD))
    whole = texts(stream.state_dict())
    assert len(whole) == times * 3 * len(BAD)
    for done in range(len(items) + 1):
        with iterate(make()) as first, iterate(make()) as second:
            got = [next(first) for _ in range(done)]
            second.load_state_dict(first.state_dict())
            assert texts(second.state_dict()) == texts(first.state_dict())
            assert got + list(second) == items
            assert texts(second.state_dict()) == whole, f"resumed after {done}"
    check_node(make, epochs=[0], num_shards=1)
    halves = []
    for shard in range(2):
        half = iterate(FORMS[form](PathList(paths).sharding_filter()), shard=shard, num_shards=2)
        assert len(list(half)) == times * (2 - shard) * (LINES - len(BAD))
        halves += texts(half.state_dict())
    assert sorted(halves) == whole


def test_what_is_left_out_of_the_rounds_before_stays_told(paths: list[str]) -> None:
    stream = iterate(tolerant(paths[0]).cycle(3))
    before = len(list(zip(range(6), stream)))
    assert left_out(stream.state_dict())[0] == 3
    again = iterate(tolerant(paths[0]).cycle(3))
    again.load_state_dict(stream.state_dict())
    assert before + len(list(again)) == 3 * (LINES - len(BAD))
    assert left_out(again.state_dict())[0] == 3 * len(BAD)


def test_the_rest_of_what_is_given_up_leaves_what_was_told(paths: list[str]) -> None:
    def fragile(path: str) -> Any:
        return iter(tolerant(path).map(lambda item: 1 // (item - 13)))

    stream = iterate(PathList(paths).flatmap(fragile).on_error("skip"))
    assert len(list(stream)) == 4 + 2 + 4
    _, noted = left_out(stream.state_dict())
    nodes = [entry.node for entry in noted]
    assert nodes.count("JsonlReader") == 2 + 1 + 2
    assert sum(node.startswith("FlatMapper") for node in nodes) == 1


def test_L8_what_is_state_of_ended_passes_is_checked(paths: list[str]) -> None:
    stream = iterate(PathList(paths).flatmap(tolerant))
    list(stream)
    state = stream.state_dict()
    key = next(name for name, value in state.items() if isinstance(value, dict) and LEFT_OUT in value)
    for forged in (None, {}, {LEFT_OUT: 1}, {LEFT_OUT: {"count": 2, "noted": []}}, {**state[key], "more": 1}):
        with pytest.raises(StateError):
            iterate(PathList(paths).flatmap(tolerant)).load_state_dict({**state, key: forged})


def test_L1_workers_tell_the_same(paths: list[str]) -> None:
    graph = PathList(paths).sharding_filter().flatmap(tolerant)
    told = []
    for workers in (None, 2):
        with DataLoader2(graph, reading_service=make_service(workers, 2, every=1)) as loader:
            stream = iter(loader)
            for _ in range(11):
                next(stream)
            told.append(texts(loader.state_dict()))
            assert list(stream) == [25]
    assert told[0] == told[1]
    assert len(told[0]) == 5  # of the first file both, though that is over; the last bad record comes after this place
