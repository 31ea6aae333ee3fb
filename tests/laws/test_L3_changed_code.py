"""L3, changed code: what may change between save and resume goes on exactly, what may not is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader, DataLoader2, InProcessReadingService, IterDataPipe
from torchpipe.errors import StateMismatchError
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


def failing(number: int) -> int:
    if number % 9 == 4 and not Mended.now:
        raise ValueError(f"no {number}")
    return number


def length(number: int) -> list[int]:
    return [number] * (1 + number % (4 if Mended.now else 3))


def group(number: int) -> int:
    return number % (4 if Mended.now else 3)


class Selecting(IterDataPipe[int]):
    """A node of a user's, that leaves out what the function does."""

    def __init__(self, source: IterDataPipe[int]) -> None:
        self.source = source

    def __iter__(self) -> Iterator[int]:
        return (number for number in self.source if good(number))


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
    "on_error": lambda: numbers().map(failing).on_error("skip", budget=None),
    "pack": lambda: numbers().map(length).pack(8, strategy="first_fit"),
    "groupby": lambda: numbers().groupby(group, group_size=3),
}
REPLAYED: dict[str, Callable[[], IterDataPipe[Any]]] = {
    "a node of the user's": lambda: Selecting(numbers()),
    "an iterable": lambda: IterableWrapper(Numbers()).sharding_filter(),
}
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
def test_changed_choices_are_refused_and_an_exact_state_goes_on(form: str, workers: int) -> None:
    make = CHANGING[form]
    _, state, rest = saved(make(), workers, 40)
    with loader(make(), 2 - workers) as same:
        same.load_state_dict(state)
        assert shown(same) == shown(rest)  # the same code: whatever the number of workers
    Mended.now = True
    with loader(make(), workers) as other, pytest.raises(StateMismatchError, match="made again"):
        other.load_state_dict(state)
        list(other)
    Mended.now = False
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


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("form", REPLAYED)
@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
def test_what_is_run_again_from_its_start_is_compared_too(form: str, workers: int) -> None:
    make = REPLAYED[form]
    for exact in (False, True):
        _, state, rest = saved(make(), workers, 40, exact=exact)
        with loader(make(), workers) as same:
            same.load_state_dict(state)
            assert list(same) == rest
        Mended.now = True
        with loader(make(), workers) as other, pytest.raises(StateMismatchError, match="again"):
            other.load_state_dict(state)
            list(other)
        Mended.now = False


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
def test_an_iterable_dataset_in_a_DataLoader(workers: int) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Numbers(), batch_size=4, num_workers=workers, collate_fn=list)

    first = make()
    stream = iter(first)
    for _ in range(11):
        next(stream)
    state, exact = first.state_dict(), first.state_dict(exact=True)
    rest = list(stream)
    for one in (state, exact):
        again = make()
        again.load_state_dict(one)
        assert list(again) == rest
    Mended.now = True
    other = make()
    other.load_state_dict(state)
    with pytest.raises(StateMismatchError, match="again"):
        list(other)


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


def test_what_is_dispatched_is_compared() -> None:
    def make() -> IterDataPipe[int]:
        return IterableWrapper(range(COUNT)).filter(good).sharding_round_robin_dispatch().map(changed)

    _, state, rest = saved(make(), 2, 41)
    with loader(make(), 0) as same:
        same.load_state_dict(state)
        assert list(same) == rest
    Mended.now = True
    with loader(make(), 2) as other, pytest.raises(StateMismatchError, match="made again"):
        other.load_state_dict(state)
        list(other)


def test_what_a_node_makes_again_by_itself_is_no_other_choice(tmp_path: Path) -> None:
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
            _, state, rest = saved(forms()[number], 0, 41, exact=exact)
            for workers in WORKERS:
                with loader(forms()[number], workers) as other:
                    other.load_state_dict(state)
                    assert shown(other) == shown(rest), (number, exact, workers)


def known(document: dict[str, Any]) -> bool:
    return good(document["id"])
