"""A function that raises StopIteration, and an item that raises IndexError, are errors: never the end of a stream."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.measured import measured
from torchpipe import DataLoader2, IterDataPipe, NodeIterator, iterate
from torchpipe.errors import GraphError
from torchpipe.execution.reading_service import InProcessReadingService
from torchpipe.iter import IterableWrapper, JsonlReader, PathList, WebDatasetReader
from torchpipe.map import SequenceWrapper

FORMS = ["flatmap", "interleave"]


def first(item: Any) -> Any:
    """Raises: StopIteration for a 3."""
    return next(value for value in [item] if value != 3)


def numbers() -> Any:
    return IterableWrapper(range(9))


def classified() -> Any:
    low, high = numbers().demux(2, lambda item: first(item) % 2)
    return low.mux_longest(high)


FUNCTIONS: dict[str, Callable[[], Any]] = {
    "batch": lambda: numbers().batch(1, wrapper_class=lambda batch: first(batch[0])),
    "collate": lambda: numbers().collate(first),
    "demux": classified,
    "dynamic_batch": lambda: numbers().dynamic_batch(4, cost_fn=first),
    "filter": lambda: numbers().filter(lambda item: first(item) is not None),
    "flatmap": lambda: numbers().flatmap(lambda item: [first(item)]),
    "groupby": lambda: numbers().groupby(first),
    "interleave": lambda: numbers().interleave(lambda item: [first(item)]),
    "map": lambda: numbers().map(first),
    "map-style": lambda: SequenceWrapper(range(9)).map(first).to_iter_datapipe(),
    "mix": lambda: numbers().mix(numbers(), weights=[1, 1], by=lambda item: first(item) + 1),
    "parallel_map": lambda: numbers().parallel_map(first),
    "random_map": lambda: numbers().random_map(lambda item, rng: first(item)),
    "sort": lambda: numbers().sort(3, first),
    "zip_with_iter": lambda: numbers().zip_with_iter(numbers(), key_fn=first, ref_key_fn=int),
    "zip_with_map": lambda: numbers().zip_with_map(SequenceWrapper(range(9)), int, merge_fn=lambda a, b: first(a)),
}


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_L7_a_function_that_raises_stop_iteration_is_an_error(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError) as caught:
        list(iterate(FUNCTIONS[name]()))
    assert isinstance(caught.value.__cause__, StopIteration)


def test_L7_a_loader_names_the_function() -> None:
    with pytest.raises(RuntimeError) as caught:
        list(DataLoader2(numbers().map(first)))
    assert any("first() raised StopIteration" in note for note in caught.value.__notes__)
    assert any("Mapper(first)" in note for note in caught.value.__notes__)


def test_L7_decoding_a_sample(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        for number in range(6):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = 1
            archive.addfile(info, io.BytesIO(b"%d" % number))
    graph = WebDatasetReader(f"{tmp_path}/s.tar", handlers={"txt": lambda data: first(int(data))})
    for node in (graph, graph.sharding_filter()):
        with pytest.raises(RuntimeError, match=r"3\.txt, which is no end"):
            list(iterate(node))
    assert [sample["txt"] for sample in iterate(graph.on_error("skip"))] == [0, 1, 2, 4, 5]


class _MapIterator(NodeIterator[Any]):
    def run(self) -> Iterator[Any]:
        return map(first, self.source.items())


class Careless(IterDataPipe[Any]):
    iterator = _MapIterator

    def __init__(self, source: IterDataPipe[Any]) -> None:
        self.source = source


def test_L7_a_pass_that_would_end_in_silence_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(iterate(Careless(numbers())))


class Clip:
    """Five frames, of which getting one may fail."""

    def __init__(self, number: int, error: type[Exception] = IndexError, length: int = 5) -> None:
        self.number, self.error, self.length = number, error, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, place: int) -> tuple[int, int]:
        if place >= 5 or (self.number, place) == (1, 2):
            raise self.error("no such frame")
        return self.number, place


@pytest.mark.parametrize("form", FORMS)
def test_L7_what_is_opened_is_read_to_its_length(form: str) -> None:
    def opened(fn: Callable[[int], Any]) -> list[Any]:
        return list(iterate(getattr(IterableWrapper(range(3)), form)(fn)))

    with pytest.raises(IndexError) as caught:
        opened(Clip)
    assert any("has 5 items, as its len() says, and item 2" in note for note in caught.value.__notes__)
    with pytest.raises(RuntimeError, match="item 2 of Clip raised StopIteration"):
        opened(lambda number: Clip(number, StopIteration))
    with pytest.raises(IndexError) as caught:
        opened(lambda number: Clip(0, length=7))
    assert any("has 7 items, as its len() says, and item 5" in note for note in caught.value.__notes__)


def lines(folder: Path) -> Any:
    for name in range(3):
        texts = ["{oops" if (name, line) == (1, 4) else str(10 * name + line) for line in range(10)]
        (folder / f"{name}.jsonl").write_text("\n".join(texts))
    return PathList(f"{folder}/?.jsonl")


@pytest.mark.parametrize("form", FORMS)
def test_L2_nodes_that_a_function_makes_are_of_the_pass(form: str, tmp_path: Path) -> None:
    """One bad line is left out alone, and a node made by the function draws from the loader's seed."""
    paths = lines(tmp_path)
    graph = getattr(paths, form)(lambda path: JsonlReader(path).shuffle()).on_error("skip")

    def loader() -> DataLoader2[Any]:
        made = DataLoader2(graph)
        made.seed(3)
        return made

    items = list(loader())
    assert sorted(items) == [number for number in range(30) if number != 14]
    for done in range(0, len(items), 4):
        begun = loader()
        stream = iter(begun)
        for _ in range(done):
            next(stream)
        again = loader()
        again.load_state_dict(begun.state_dict())
        assert list(again) == items[done:]


@pytest.mark.parametrize("form", FORMS)
def test_a_stream_is_not_divided_again_by_what_a_function_makes(form: str, tmp_path: Path) -> None:
    for made in ("sharding_filter", "sharding_round_robin_dispatch"):
        divided = lines(tmp_path).sharding_filter()
        graph = getattr(divided, form)(lambda path, made=made: getattr(JsonlReader(path), made)())
        loader = DataLoader2(graph, reading_service=InProcessReadingService(num_shards=2))
        with pytest.raises(GraphError, match="two sharding points on one path"):
            list(loader)
        nested = getattr(divided, form)(
            lambda path, made=made: IterableWrapper([path]).interleave(lambda one: getattr(JsonlReader(one), made)())
        )
        with pytest.raises(GraphError, match="two sharding points on one path"):
            list(DataLoader2(nested, reading_service=InProcessReadingService(num_shards=2)))


@pytest.mark.parametrize("num_shards", [1, 2, 3])
@pytest.mark.parametrize("behind", [False, True])
def test_L1_shards_count_a_record_that_is_left_out(num_shards: int, behind: bool, tmp_path: Path) -> None:
    """Each shard passes over records of others: one that is wrong has a number all the same."""
    reader = JsonlReader(lines(tmp_path))
    graph = reader.sharding_filter().on_error("skip") if behind else reader.on_error("skip").sharding_filter()

    def loader() -> DataLoader2[Any]:
        return DataLoader2(graph, reading_service=InProcessReadingService(num_shards=num_shards))

    items = list(loader())
    assert sorted(items) == [number for number in range(30) if number != 14]
    for done in range(0, len(items), 5):
        begun = loader()
        stream = iter(begun)
        for _ in range(done):
            next(stream)
        again = loader()
        again.load_state_dict(begun.state_dict())
        assert list(again) == items[done:]


SIZED: dict[str, Callable[[Any], Any]] = {
    "dynamic_batch": lambda source: source.dynamic_batch(5, overflow="drop"),
}


@pytest.mark.parametrize("name", list(SIZED))
def test_items_of_another_size_are_counted_and_told_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    def begun() -> Any:
        return iterate(SIZED[name](IterableWrapper([[n] * (9 if n % 4 == 3 else 1) for n in range(16)])))

    stream = begun()
    items = list(stream)
    assert sorted(part[0] for batch in items for part in batch) == [n for n in range(16) if n % 4 != 3]
    assert stream.state_dict()["dropped"] == 4
    assert [record for record in caplog.records if "leaves out an item" in record.message][1:] == []
    for done in range(len(items) + 1):
        one, again = begun(), begun()
        for _ in range(done):
            next(one)
        again.load_state_dict(one.state_dict())
        assert list(again) == items[done:]
        assert again.state_dict()["dropped"] == 4
    loader = measured(DataLoader2(SIZED[name](IterableWrapper([[1] * 9, [1]]))))
    assert len(list(loader)) == 1
