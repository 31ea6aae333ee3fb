"""L3, changed code: what may change between save and resume goes on exactly."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from reading_services import MultiProcessingReadingService
from tests.laws.executors import pids
from torchpipe import DataLoader, DataLoader2, InProcessReadingService, IterDataPipe
from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper, JsonlReader
from torchpipe.state import SnapshotPolicy

COUNT = 600


class Mended:
    """Which code runs: the functions below are the same by name."""

    now = False


@pytest.fixture(autouse=True)
def _unmended() -> Iterator[None]:
    Mended.now = False
    yield
    Mended.now = False


def good(number: int) -> bool:
    return number % 10 != 0 and not (Mended.now and number % 7 == 3)


def parts(number: int) -> list[int]:
    return [number, -number] if Mended.now and number % 5 == 2 else [number]


def lazy_parts(number: int) -> Iterator[int]:
    yield from parts(number)


def changed(number: int) -> int:
    return number + 10_000 if Mended.now else number


def length(number: int) -> list[int]:
    return [number] * (1 + number % (4 if Mended.now else 3))


def group(number: int) -> int:
    return number % (4 if Mended.now else 3)


def good_now(number: int) -> bool:
    return not (Mended.now and number % 7 == 4)


class OneOfOne(IterDataPipe[int]):
    """A node of a user's that opens its input when it is run."""

    one_to_one = True

    def __init__(self, source: IterDataPipe[int]) -> None:
        self.source = source

    def __iter__(self) -> Iterator[int]:
        yield from self.source


class Selecting(IterDataPipe[int]):
    """A node of a user's, that leaves out what the function does."""

    def __init__(self, source: IterDataPipe[int]) -> None:
        self.source = source

    def __iter__(self) -> Iterator[int]:
        return (number for number in self.source if number % 10 != 0)


class Numbers(IterableDataset[int]):
    """A dataset of a user's, which has no state."""

    def __iter__(self) -> Iterator[int]:
        return (number for number in range(COUNT) if good(number))


def numbers() -> IterDataPipe[int]:
    return IterableWrapper(range(COUNT)).shuffle(buffer_size=30).sharding_filter()


CHANGING: dict[str, Callable[[], IterDataPipe[Any]]] = {
    "filter": lambda: numbers().filter(good),
    "filter, batch": lambda: numbers().filter(good).batch(4),
    "filter, shuffle": lambda: numbers().filter(good).shuffle(buffer_size=20),
    "flatmap": lambda: numbers().flatmap(parts),
    "flatmap of iterators": lambda: numbers().flatmap(lazy_parts),
    "unbatch": lambda: numbers().map(parts).unbatch(),
    "behind a node of the user's": lambda: Selecting(numbers()).filter(good_now),
    "before one that makes one of one": lambda: OneOfOne(numbers().filter(good)),
    "pack": lambda: numbers().map(length).pack(8, strategy="first_fit"),
    "groupby": lambda: numbers().groupby(group, group_size=3),
}
REPLAYING = ("flatmap of iterators", "behind a node of the user's", "before one that makes one of one")
WORKERS = [0, 2]


def loader(graph: IterDataPipe[Any], workers: int, every: int = 25) -> DataLoader2[Any]:
    policy = partial(SnapshotPolicy, every=every)
    if not workers:
        return DataLoader2(graph, reading_service=InProcessReadingService(num_shards=2, policy=policy))
    service = MultiProcessingReadingService(workers, num_shards=2, policy=policy)
    return DataLoader2(graph, reading_service=service)


def saved(graph: IterDataPipe[Any], workers: int, items: int, *, exact: bool = False) -> tuple[Any, Any, Any]:
    """(the items before the state, the state, those behind it)"""
    with loader(graph, workers) as running:
        running.seed(3)
        stream = iter(running)
        head = [next(stream) for _ in range(items)]
        state = running.state_dict(exact=exact)
        return head, state, list(stream)


def flat(items: Any) -> list[int]:
    return [part for item in items for part in (item if isinstance(item, list) else [item])]


def shown(items: Any) -> list[str]:
    return [repr(item) for item in items]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("form", CHANGING)
def test_an_exact_state_goes_on_under_code_that_chooses_otherwise(form: str, workers: int) -> None:
    make = CHANGING[form]
    _, state, rest = saved(make(), workers, 40)
    with loader(make(), 2 - workers) as same:
        same.load_state_dict(state)
        assert shown(same) == shown(rest)  # the same code: whatever the number of workers
    if form in REPLAYING:
        with pytest.raises(StateError, match=r"keeps no state, and .* made again"):
            saved(make(), workers, 40, exact=True)
        return
    _, exact, rest = saved(make(), workers, 40, exact=True)
    with loader(make(), workers) as same:
        same.load_state_dict(exact)
        assert shown(same) == shown(rest)
    Mended.now = True
    with loader(make(), 2 - workers) as other:
        other.load_state_dict(exact)
        assert list(other)


@pytest.mark.parametrize("workers", WORKERS)
def test_from_an_exact_state_a_mended_filter_neither_loses_nor_repeats(workers: int) -> None:
    for items in (0, 1, 33, 60):
        head, exact, rest = saved(CHANGING["filter"](), workers, items, exact=True)
        Mended.now = True
        with loader(CHANGING["filter"](), workers) as other:
            other.load_state_dict(exact)
            after = list(other)
            assert sorted(after) == sorted(number for number in rest if good(number))
            assert not set(after) & set(head)
        Mended.now = False


@pytest.mark.parametrize("workers", WORKERS)
def test_a_changed_map_goes_on_exactly(workers: int) -> None:
    for make in (
        lambda: numbers().map(changed).filter(positive).batch(4, wrapper_class=list),
        lambda: numbers().filter(good_always).map(changed).batch(4, wrapper_class=list),
    ):
        _, state, rest = saved(make(), workers, 21)
        Mended.now = True
        with loader(make(), workers) as other:
            other.load_state_dict(state)
            assert flat(other) == [number + 10_000 for number in flat(rest)]
        Mended.now = False


def positive(number: int) -> bool:
    return number % 10_000 % 3 != 0


def good_always(number: int) -> bool:
    return number % 3 != 0


def test_map_style_data_may_have_other_code() -> None:
    class Squares:
        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int) -> int:
            return changed(index)

    first = DataLoader(Squares(), batch_size=4, shuffle=True, collate_fn=list)
    stream = iter(first)
    for _ in range(5):
        next(stream)
    state, rest = first.state_dict(exact=True), list(stream)
    Mended.now = True
    other = DataLoader(Squares(), batch_size=4, shuffle=True, collate_fn=list)
    other.load_state_dict(state)
    assert flat(other) == [number + 10_000 for number in flat(rest)]


def test_what_a_node_makes_again_by_itself_goes_on(tmp_path: Path) -> None:
    for part in range(3):
        lines = (json.dumps({"id": number, "text": "x" * 4_000}) for number in range(part, 300, 3))
        (tmp_path / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    paths = str(tmp_path / "*.jsonl")

    def forms() -> list[IterDataPipe[Any]]:
        return [
            JsonlReader(paths).shard_pieces(piece_bytes=40_000).shuffle(buffer_size=300).filter(known),  # by number
            IterableWrapper(range(COUNT)).filter(good).cache(chunk_items=50).sharding_filter().filter(good_always),
            numbers().filter(good).flatmap(lazy_parts).shuffle(buffer_size=30),
            numbers().filter(good).repeat(2),
        ]

    for number in range(len(forms())):
        for exact in (False, True):
            if exact and number == 2:  # an open iterator would be read again
                continue
            _, state, rest = saved(forms()[number], 0, 41, exact=exact)
            for workers in WORKERS:
                with loader(forms()[number], workers) as other:
                    other.load_state_dict(state)
                    assert shown(other) == shown(rest), (number, exact, workers)


def known(document: dict[str, Any]) -> bool:
    return good(document["id"])


def gen3(number: int) -> Iterator[int]:
    return (part for part in [number] * (1 + number % 3))


def third(number: int) -> int:
    return int(number % 3 == 0)


def _demuxed() -> IterDataPipe[Any]:
    first, second = IterableWrapper(range(24)).filter(good).demux(2, third)
    return first.flatmap(gen3).mux_longest(second)


def _demuxed_and_expanded() -> IterDataPipe[Any]:
    first, second = IterableWrapper(range(24)).demux(2, third)
    return first.flatmap(gen3).mux_longest(second.filter(good).flatmap(gen3))


def _forked() -> IterDataPipe[Any]:
    first, second = IterableWrapper(range(24)).filter(good).fork(2)
    left, right = second.demux(2, third)
    return first.flatmap(gen3).mux_longest(left, right.flatmap(gen3))


@pytest.mark.parametrize("make", [_demuxed, _demuxed_and_expanded, _forked])
@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
def test_branches_of_one_pass_go_on(make: Callable[[], Any]) -> None:
    for every in (2, 5):
        for items in (3, 5, 8, 9, 11, 14, 17):
            with one_shard(make(), every) as running:
                stream = iter(running)
                for _ in range(items):
                    next(stream)
                state, rest = running.state_dict(), list(stream)
            with one_shard(make(), every) as same:
                same.load_state_dict(state)
                assert list(same) == rest


def one_shard(graph: IterDataPipe[Any], every: int) -> DataLoader2[Any]:
    policy = partial(SnapshotPolicy, every=every)
    return DataLoader2(graph, reading_service=InProcessReadingService(num_shards=1, policy=policy))


class Stamped(IterDataPipe[Any]):
    """Its items, if not their number, are others in each run."""

    def __init__(self, source: IterDataPipe[int]) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        return ((number, time.perf_counter(), os.getpid(), list({str(number), "a", "b"})) for number in self.source)


class StampedData(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return ((number, time.perf_counter()) for number in range(COUNT))


def number_of(item: Any) -> int:
    return int(item[0] if isinstance(item, tuple) else item)


def good_stamped(item: Any) -> bool:
    return good(number_of(item))


def group_stamped(item: Any) -> Any:
    return group(number_of(item))


def parts_stamped(item: Any) -> list[Any]:
    return [item, (-number_of(item), time.perf_counter())] if number_of(item) % 3 else [item]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
def test_items_may_hold_something_else_in_each_run(workers: int) -> None:
    for make in (
        lambda: Stamped(numbers()).filter(good_stamped).batch(4),
        lambda: IterableWrapper(StampedData()).sharding_filter().filter(good_stamped),
        lambda: numbers().filter(good).map(with_time).flatmap(parts_stamped).groupby(group_stamped, group_size=3),
        lambda: Stamped(numbers()).flatmap(parts_stamped),
    ):
        _, state, rest = saved(make(), workers, 40)
        with loader(make(), 2 - workers) as same:
            same.load_state_dict(state)
            assert len(list(same)) == len(rest)


def with_time(number: int) -> Any:
    return number, time.perf_counter()


class Selected(IterDataPipe[int]):
    """Reads ahead of what it yields, as far as time tells it to."""

    def __init__(self, source: IterDataPipe[int]) -> None:
        self.source = source

    def __iter__(self) -> Iterator[int]:
        source, waiting = iter(self.source), list[int]()
        while True:
            waiting += islice(source, 1 + time.perf_counter_ns() // 7 % 5)
            if not waiting:
                return
            yield waiting.pop(0)


CHOOSING: list[Callable[[], IterDataPipe[Any]]] = [
    lambda: numbers().map(changed).batch(4),
    lambda: numbers().filter(good),
    lambda: OneOfOne(numbers().filter(good)),
    lambda: Selecting(numbers()).filter(good),
    lambda: Selecting(numbers().filter(good)),
    lambda: Selected(numbers().filter(good)).filter(good),
    lambda: IterableWrapper(Numbers()).sharding_filter(),
    lambda: numbers().map(changed).on_error("skip"),
    lambda: numbers().map(changed).on_error("raise"),
    lambda: numbers().filter(good).on_error("raise"),
]


@pytest.mark.parametrize("number", range(len(CHOOSING)))
@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
def test_the_same_code_goes_on_whoever_chooses(number: int) -> None:
    make = CHOOSING[number]
    _, state, rest = saved(make(), 0, 41)
    with loader(make(), 2) as same:
        same.load_state_dict(state)
        assert shown(same) == shown(rest)


class RaisesOnce:
    """Raises in the one run, as a connection may, and not in the other."""

    def __call__(self, number: int) -> int:
        if number % 9 == 4 and not Mended.now:
            raise ValueError(f"no connection for {number}")
        return number


@pytest.mark.parametrize("mended", [False, True])
@pytest.mark.parametrize("workers", WORKERS)
def test_from_an_exact_state_other_items_may_raise(workers: int, mended: bool) -> None:
    def plain() -> IterDataPipe[Any]:
        return numbers().map(RaisesOnce()).on_error("skip", budget=None)

    def deeper() -> IterDataPipe[Any]:
        return numbers().map(RaisesOnce()).filter(good_always).on_error("skip", budget=None).batch(2)

    for make in (plain, deeper):
        Mended.now = mended
        _, state, rest = saved(make(), workers, 21)
        _, exact, _ = saved(make(), workers, 21, exact=True)
        for one in (state, exact):
            with loader(make(), 2 - workers) as same:
                same.load_state_dict(one)
                assert shown(same) == shown(rest)
        Mended.now = not mended
        with loader(make(), workers) as other:  # what comes later may raise or not
            other.load_state_dict(exact)
            assert list(other)


@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
def test_an_iterable_dataset_that_leaves_out_goes_on_in_a_DataLoader() -> None:
    def make(workers: int) -> DataLoader[Any]:
        return DataLoader(Numbers(), batch_size=4, num_workers=workers, collate_fn=list)

    for workers in WORKERS:
        first = make(workers)
        stream = iter(first)
        for _ in range(11):
            next(stream)
        state, rest = first.state_dict(), list(stream)
        again = make(workers)
        again.load_state_dict(state)
        assert list(again) == rest


def test_a_filter_behind_the_dispatcher_goes_on() -> None:
    def make() -> IterDataPipe[int]:
        return IterableWrapper(range(COUNT)).filter(good).sharding_round_robin_dispatch().filter(good_always)

    _, state, rest = saved(make(), 2, 41)
    with loader(make(), 0) as same:
        same.load_state_dict(state)
        assert list(same) == rest


class Moody:
    """Answers otherwise once a file is there, in whichever process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, number: int) -> bool:
        return number % 10 != 0 and not (self.path.exists() and number % 7 == 3)


class Held:
    """Makes no late number before a file is there: workers are killed in mid-epoch, however long the test takes."""

    def __init__(self, until: Path) -> None:
        self.until = until

    def __call__(self, number: int) -> int:
        while number >= COUNT // 2 and not self.until.exists():
            time.sleep(0.01)
        return number


def test_a_run_goes_on_where_a_function_answers_otherwise_after_a_death(tmp_path: Path) -> None:
    """And the state from before goes on with the code from before, of which an exact one is made then."""
    mood = tmp_path / "mood"

    def make() -> IterDataPipe[int]:
        return numbers().filter(Moody(mood)).map(Held(tmp_path / "killed"))

    with loader(make(), 2) as running:
        running.seed(3)
        stream = iter(running)
        items = [next(stream) for _ in range(41)]
        state = running.state_dict()
        mood.touch()
        for process in pids(running):
            os.kill(process, signal.SIGKILL)
        (tmp_path / "killed").touch()
        items += stream
        assert len(items) > 400
        assert running.reading_service.restarts > 0
    mood.unlink()
    with loader(make(), 2) as same:  # which the advice says
        same.load_state_dict(state)
        stream = iter(same)
        head = [next(stream) for _ in range(2)]
        exact = same.state_dict(exact=True)
    mood.touch()
    with loader(make(), 2) as other:
        other.load_state_dict(exact)
        assert not {*items[:41], *head} & set(other)
