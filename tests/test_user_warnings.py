"""Replays are announced once, with their length, at the user's own line, before anything starts; or avoided."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from reading_services import MultiProcessingReadingService
from tests.state.forging import opened_deep, places, replaced, sealed_deep
from torchpipe import DataLoader2, InProcessReadingService, IterDataPipe
from torchpipe.errors import ReplayWarning, StateError
from torchpipe.iter import FileOpener, IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.state import SnapshotPolicy, decode, encode
from torchpipe.testing import check_node

SERVICES: dict[str, Callable[[], Any]] = {
    "in process": lambda: InProcessReadingService(num_shards=2, policy=lambda: SnapshotPolicy(every=7)),
    "prefetching": lambda: InProcessReadingService(3, num_shards=2, policy=lambda: SnapshotPolicy(every=7)),
    "workers": lambda: MultiProcessingReadingService(2, policy=lambda: SnapshotPolicy(every=7)),
}


class Plain(IterDataPipe[int]):
    """A generator, without state."""

    def __iter__(self) -> Iterator[int]:
        yield from range(1000)


def parts(item: int) -> Iterator[tuple[int, int]]:
    for part in range(1000):
        yield item, part


def generator_graph() -> Any:
    return Plain().sharding_filter()


def flatmap_graph() -> Any:
    return IterableWrapper(range(4)).sharding_filter().flatmap(parts)


def wrapped_graph() -> Any:
    return IterableWrapper(Anew()).sharding_filter()


class Anew:
    def __iter__(self) -> Iterator[int]:
        return iter(range(1000))


def loader(graph: Callable[[], Any], service: Callable[[], Any]) -> DataLoader2[Any]:
    return DataLoader2(graph(), reading_service=service())


def saved(graph: Callable[[], Any], service: Callable[[], Any], count: int) -> tuple[dict[str, Any], list[Any]]:
    """The state after ``count`` items, and the items that follow."""
    with loader(graph, service) as going:
        going.seed(1)
        stream = iter(going)
        for _ in range(count):
            next(stream)
        return going.state_dict(), [next(stream) for _ in range(20)]


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
@pytest.mark.parametrize(
    ("graph", "name", "length"),
    [
        (generator_graph, "Plain", 200),  # each of 2 shards reads all
        (wrapped_graph, "the iterable Anew", 200),
        (flatmap_graph, "the iterator in FlatMapper(parts)", 100),
    ],
)
def test_L5_once_with_the_true_length_at_the_users_line(
    graph: Callable[[], Any], name: str, length: int, service: Callable[[], Any]
) -> None:
    state, following = saved(graph, service, 100)
    with loader(graph, service) as resumed, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resumed.load_state_dict(state)
        stream = iter(resumed)
        told = [item for item in caught if item.category is ReplayWarning]
        assert [next(stream) for _ in range(20)] == following
    assert [item.filename for item in told] == [__file__]
    assert str(told[0].message).startswith(f"{name} keeps no state: replaying its first ")
    announced = int(str(told[0].message).split("its first ")[1].split()[0])
    assert length - 14 <= announced <= length  # but for the few items since the last snapshot
    assert [item for item in caught if item.category is ReplayWarning] == told  # before anything began


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
@pytest.mark.parametrize("graph", [generator_graph, flatmap_graph])
def test_L7_as_an_error_it_ends_nothing(graph: Callable[[], Any], service: Callable[[], Any]) -> None:
    state, following = saved(graph, service, 100)
    with loader(graph, service) as resumed:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            resumed.load_state_dict(state)
            for _ in range(2):
                with pytest.raises(ReplayWarning, match="replaying"):
                    iter(resumed)
                assert resumed.state_dict() == state
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReplayWarning)
            stream = iter(resumed)
            assert [next(stream) for _ in range(20)] == following


def lines_of(path: Path, mode: str) -> Callable[[], Any]:
    return lambda: FileOpener(IterableWrapper([str(path)] * 2), mode=mode).flatmap(lambda pair: pair[1])


class Pages(Sequence[str]):
    """Reads each page when it is asked for, and notes it."""

    read: list[int] = []

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: Any) -> Any:
        if index >= 50:
            raise IndexError(index)
        Pages.read.append(index)
        return f"page {index}"


class OldStyle:
    """A sequence as before ``__iter__``."""

    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise IndexError
        return index


class Knowing:
    """An iterator with a state."""

    def __init__(self, length: int) -> None:
        self.at, self.length = 0, length

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at == self.length:
            raise StopIteration
        self.at += 1
        return self.at

    def state_dict(self) -> dict[str, int]:
        return vars(self)

    def load_state_dict(self, state: dict[str, int]) -> None:
        vars(self).update(state)


@pytest.mark.parametrize("mode", ["r", "b"])
def test_L5_flatmap_goes_on_within_an_open_file_without_reading_it_again(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("".join(f"line {number} äöü\r\n" if number % 3 else "\n" for number in range(400)).encode())
    make = lines_of(path, mode)
    expected = list(iterate(make()))
    with path.open("r" if mode == "r" else "rb") as file:
        assert expected == 2 * list(file)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReplayWarning)
        for count in (0, 1, 399, 400, 401, 777, 800):
            going = iterate(make())
            going.drop(count)
            resumed = iterate(make())
            resumed.load_state_dict(decode(encode(going.state_dict())))
            again = iterate(make())
            again.load_state_dict(resumed.state_dict())
            assert list(again) == expected[count:]
            assert list(resumed) == expected[count:]


@pytest.mark.parametrize(
    "fn",
    [lambda item: OldStyle(), lambda item: Pages(), lambda item: Knowing(item), lambda item: io.StringIO("a\nb\n\nc")],
    ids=["old style", "sequence", "with state", "file in memory"],
)
def test_L2_flatmap_within_what_has_a_position(fn: Callable[[int], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReplayWarning)
        check_node(lambda: IterableWrapper([3, 5, 1]).flatmap(fn))


def test_L5_a_sequence_is_not_read_again() -> None:
    node = IterableWrapper([0]).flatmap(lambda item: Pages())
    going = iterate(node)
    going.drop(30)
    state = going.state_dict()
    Pages.read.clear()
    resumed = iterate(node)
    resumed.load_state_dict(state)
    assert next(resumed) == "page 30"
    assert Pages.read == [30]


def test_a_function_that_makes_another_iterator_than_before_is_named() -> None:
    going = iterate(IterableWrapper([3]).flatmap(Knowing))
    going.drop(2)
    resumed = iterate(IterableWrapper([3]).flatmap(lambda item: (number for number in range(item))))
    resumed.load_state_dict(going.state_dict())
    with pytest.raises(StateError, match=r"now made a generator .* same function"):
        next(resumed)


@pytest.mark.parametrize("forged", [["Lines", -1], ["Lines", 1.5], [None, 3], ["Lines"], 7])
def test_L8_what_is_no_length_of_a_replay_is_damage_and_not_announced(forged: Any) -> None:
    saving = DataLoader2(generator_graph())
    next(iter(saving))
    state = saving.state_dict()
    content = opened_deep(state["payload"])
    (path,) = (path for path in places(content) if path[-1:] == ("replays",))
    payload = sealed_deep(replaced(content, path, lambda _: [forged]))
    other = DataLoader2(generator_graph())
    with pytest.raises(StateError), warnings.catch_warnings():
        warnings.simplefilter("error")
        other.load_state_dict(state | {"payload": payload})
        next(iter(other))
