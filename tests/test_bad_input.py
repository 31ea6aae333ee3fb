"""What users get wrong: each is a clear error that says what was wrong, the value, and the next step."""

from __future__ import annotations

import ast
import multiprocessing
import os
import re
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from reading_services import MultiProcessingReadingService, ReadingServiceInterface
from torchpipe import DataLoader, DataLoader2, InProcessReadingService
from torchpipe.errors import (
    GraphError,
    NotSerializableError,
    RemoteTraceback,
    ReplicatedSourceWarning,
    StateError,
    StateMismatchError,
)
from torchpipe.iter import CsvReader, FilePieces, IterableWrapper, JsonlReader, PathList, TFRecordReader
from torchpipe.map import SequenceWrapper

ROOT = Path(__file__).parents[1]


def numbers(length: int = 10) -> Any:
    return IterableWrapper(range(length)).sharding_filter()


def workers(count: int = 2, **options: Any) -> MultiProcessingReadingService:
    return MultiProcessingReadingService(count, options.pop("context", "fork"), **options)


def notes_of(error: BaseException) -> str:
    return "\n".join(error.__notes__)


# --- arguments of loaders and services ---


def test_torchdatas_ways_to_load_a_state() -> None:
    state = DataLoader2(numbers()).state_dict()
    for load in (lambda: DataLoader2.from_state(state, workers()), lambda: DataLoader2(None)):
        with pytest.raises(TypeError, match=r"a state holds no graph.* from_state\(state, datapipe, reading_service\)"):
            load()


def test_a_map_style_node_is_converted() -> None:
    loader: DataLoader2[Any] = DataLoader2(SequenceWrapper([1, 2]), lambda datapipe: datapipe.batch(2))
    assert list(loader) == [[1, 2]]
    loader = DataLoader2(IterableWrapper([1]), lambda datapipe: SequenceWrapper([3, 4]))
    assert list(loader) == [3, 4]


@pytest.mark.parametrize("call", [lambda loader: loader.seed(-1), lambda loader: loader.set_epoch("x")])
def test_a_seed_or_epoch_that_is_none_changes_nothing(call: Callable[[Any], None]) -> None:
    loader: Any = DataLoader2(numbers())
    loader.seed(3)
    loader.set_epoch(2)
    with pytest.raises((TypeError, ValueError)):
        call(loader)
    assert (loader.state_dict()["seed"], loader.state_dict()["epoch"]) == (3, 2)


# --- graphs ---


@pytest.mark.parametrize(
    "service", [workers, lambda: workers(context="spawn"), lambda: InProcessReadingService(num_shards=2)]
)
def test_a_graph_without_sharding_point(service: Callable[[], ReadingServiceInterface]) -> None:
    with pytest.raises(GraphError, match=r"no sharding point.* 2 shards .*IterableWrapper.* Put .sharding_filter\(\)"):
        DataLoader2(IterableWrapper(range(3)).map(abs), reading_service=service())


def test_a_graph_without_sharding_point_and_a_state_with_several_shards() -> None:
    """The number of shards is adopted from the state: then, too, no item may come twice."""
    with pytest.raises(StateMismatchError, match="another graph"):
        DataLoader2.from_state(DataLoader2(numbers()).state_dict(), IterableWrapper(range(10)))


@pytest.mark.parametrize("service", [workers, InProcessReadingService])
def test_two_sharding_points_on_one_path(service: Callable[[], ReadingServiceInterface]) -> None:
    with pytest.raises(GraphError, match=r"two sharding points.*ShardingFilter.* Keep the one .* nearer to the source"):
        DataLoader2(numbers().map(abs).sharding_filter(), reading_service=service())
    with pytest.raises(GraphError, match=r"two sharding points.*RoundRobin"):
        DataLoader2(numbers().sharding_round_robin_dispatch(), reading_service=service())


def test_a_service_serves_one_graph() -> None:
    service = workers()
    service.initialize(numbers())
    with pytest.raises(GraphError, match="this reading service belongs to another loader: make one for each loader"):
        service.initialize(numbers())


def test_a_service_without_a_loader() -> None:
    with pytest.raises(RuntimeError, match=r"has no graph yet: give it to DataLoader2\("):
        workers().explain()


# --- what cannot be sent to a worker ---


class Holder:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, item: Any, *rest: Any) -> Any:
        return item


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_what_cannot_be_pickled_is_named_before_any_process_starts(context: str) -> None:
    graph = numbers().map(abs).map(Holder()).batch(2)
    with pytest.raises(
        NotSerializableError,
        match=r"Mapper\(Holder\) .* attribute 'lock' of its fn \(Holder\) cannot be pickled .*or in worker_init_fn",
    ) as caught:
        DataLoader2(graph, reading_service=workers(context=context))
    assert "Mapper(abs)" not in str(caught.value)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("function", ["worker_init_fn", "worker_reset_fn"])
def test_a_worker_function_that_cannot_be_pickled(function: str) -> None:
    with pytest.raises(
        NotSerializableError,
        match=rf"cannot be sent to a worker process: attribute 'lock' of its {function} .* Open files, locks",
    ):
        DataLoader2(numbers(), reading_service=workers(**{function: Holder()}))


# --- worker functions ---


@pytest.mark.parametrize("function", ["worker_init_fn", "worker_reset_fn"])
@pytest.mark.parametrize("service", [workers, InProcessReadingService])
def test_a_worker_function_without_return(service: Any, function: str) -> None:
    in_process = service is InProcessReadingService
    options = {function.removeprefix("worker_") if in_process else function: lambda datapipe, *_: None}
    with (
        DataLoader2(numbers(), reading_service=service(**options)) as loader,
        pytest.raises(
            TypeError, match=f"{function} must return the datapipe .*got None: is a return missing"
        ) as caught,
    ):
        list(loader)
    if not in_process:
        assert re.search(r"while shard 0 of 2 was being started\n.*in worker 0 \(pid \d+\)", notes_of(caught.value))


class Unlucky(Exception):
    def __init__(self, item: int, *, reason: str) -> None:
        super().__init__(f"item {item}: {reason}")
        self.item = item


def unlucky(item: int) -> bool:
    if item == 7:
        raise Unlucky(item, reason="it is seven")
    return True


@pytest.mark.parametrize(
    ("step", "node"),
    [
        (lambda graph: graph.map(unlucky), r"Mapper\(unlucky\)"),
        (lambda graph: graph.filter(unlucky), r"Filter\(unlucky\)"),
        (lambda graph: graph.flatmap(lambda item: [unlucky(item)]), r"FlatMapper\(.*lambda.*\)"),
        (lambda graph: graph.map(unlucky).prefetch(2).shuffle(buffer_size=1), r"Mapper\(unlucky\)"),
        (lambda graph: graph.map(unlucky).to_device("cpu"), r"Mapper\(unlucky\)"),
    ],
)
def test_an_error_of_a_function_says_where(step: Callable[[Any], Any], node: str) -> None:
    with (
        DataLoader2(step(numbers()), reading_service=workers()) as loader,
        pytest.raises(Unlucky, match="item 7: it is seven") as caught,
    ):
        list(loader)
    assert caught.value.item == 7
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert f'test_bad_input.py", line {unlucky.__code__.co_firstlineno + 2}, in unlucky' in str(caught.value.__cause__)
    assert re.search(rf"raised in {node} for item \d of shard 1 of 2, epoch 0", notes_of(caught.value))
    assert re.search(r"in worker 1 \(pid \d+\)", notes_of(caught.value))


def test_an_error_before_the_dispatcher_says_where() -> None:
    graph = IterableWrapper(range(10)).map(unlucky).sharding_round_robin_dispatch()
    with (
        DataLoader2(graph, reading_service=workers()) as loader,
        pytest.raises(Unlucky, match="item 7: it is seven") as caught,
    ):
        list(loader)
    assert "in unlucky" in str(caught.value.__cause__)
    assert "Mapper(unlucky)" in notes_of(caught.value)
    assert "in the dispatcher (pid" in notes_of(caught.value)


# --- files ---


def decode_png(path: str) -> tuple[int, int]:
    with Image.open(path) as image:
        image.load()
        return image.size


def test_a_corrupt_png_is_an_error_with_node_and_item(tmp_path: Path) -> None:
    for number in range(6):
        Image.effect_noise((64, 64), 50).save(tmp_path / f"{number}.png")
    damaged = tmp_path / "3.png"
    damaged.write_bytes(damaged.read_bytes()[:1500])
    graph = PathList(f"{tmp_path}/*.png").sharding_filter().map(decode_png)
    with DataLoader2(graph, reading_service=workers()) as loader:
        sizes = []
        with pytest.raises(OSError, match="truncated") as caught:
            for size in loader:
                sizes.append(size)
    assert sizes == [(64, 64)] * 3
    assert re.search(r"raised in Mapper\(decode_png\) for item 1 of shard 1 of 2", notes_of(caught.value))
    assert re.search(r"in worker 1 \(pid \d+\)", notes_of(caught.value))


# --- torch_xla ---

WITHOUT_XLA = """
    import importlib.machinery, sys

    class WithoutXla(importlib.machinery.PathFinder):
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            return None if name.partition(".")[0] == "torch_xla" else super().find_spec(name, path, target)

    sys.meta_path = [WithoutXla if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]

    from reading_services import MultiProcessingReadingService
    from torchpipe.iter import IterableWrapper

    for build in (
        lambda: IterableWrapper(range(3)).to_device("xla"),
        lambda: IterableWrapper(range(3)).to_device("xla:1"),
        lambda: MultiProcessingReadingService(2, device="xla"),
    ):
        try:
            build()
        except ImportError as error:
            print(error.name, error)
    import torchpipe
    print(list(torchpipe.DataLoader2(IterableWrapper(range(3)).to_device("cpu"))))
"""


def test_a_missing_torch_xla() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT_XLA)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *messages, items = done.stdout.splitlines()
    assert len(messages) == 3
    for message in messages:
        assert re.match(
            r"torch_xla .*needs torch_xla, which is not installed: pip install torch==2\.9\.0 torch_xla==2\.9\.0",
            message,
        )
    assert items == "[0, 1, 2]"


# --- states ---


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (b"garbage", r"the dict from state_dict\(\), got bytes: b'garbage'.*torch.load"),
        (bytes(range(256)), r"the dict from state_dict\(\), got bytes"),
        (None, r"the dict from state_dict\(\), got NoneType"),
        ([], r"the dict from state_dict\(\), got list: \[\]"),
        ({}, r"not a torchpipe loader state: version, .* missing, it has nothing. Pass the dict from state_dict"),
        ({"model": 1, "optimizer": 2}, "not a torchpipe loader state: .* it has model, optimizer. Pass the dict"),
    ],
)
def test_what_is_no_state(state: Any, message: str) -> None:
    with DataLoader2(numbers()) as loader:
        iterator = iter(loader)
        assert next(iterator) == 0
        with pytest.raises(StateError, match=message):
            loader.load_state_dict(state)
        assert next(iterator) == 1  # the loader is as it was


def test_a_state_from_elsewhere() -> None:
    state = DataLoader2(numbers(), reading_service=InProcessReadingService(num_shards=3)).state_dict()
    with pytest.raises(StateMismatchError, match="version 9, this torchpipe reads version 2: load it with the version"):
        DataLoader2(numbers()).load_state_dict(state | {"version": 9})
    with pytest.raises(StateMismatchError, match=r"num_shards=3, this .*num_shards=2: .* Leave num_shards unset"):
        DataLoader2(numbers(), reading_service=workers(num_shards=2)).load_state_dict(state)
    with pytest.raises(StateMismatchError) as caught:
        DataLoader2(numbers(11)).load_state_dict(state)
    assert re.search(
        r"another graph: fingerprint \w{16} was saved, this graph has \w{16}\. "
        r"The first node that differs, in its iterable:\n"
        r"  saved: 0 IterableWrapper\(.*range\(0, 10\)\)\n"
        r"  here:  0 IterableWrapper\(.*range\(0, 11\)\)\n"
        r"Load it into the graph that saved it",
        str(caught.value),
    )


def test_L7_large_files_of_which_every_shard_reads_all_are_told_when_the_loader_is_built(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jsonl").touch()
        os.truncate(tmp_path / f"{number}.jsonl", 600_000_000)
    os.truncate(tmp_path / "2.jsonl", 6)

    def built(graph: Any, num_shards: int) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            DataLoader2(graph, reading_service=InProcessReadingService(num_shards=num_shards))
        return [str(warning.message) for warning in caught]

    reader = JsonlReader(tmp_path / "*")
    for graph in (reader.sharding_filter(), reader.map(str).shuffle().sharding_filter()):
        (told,) = built(graph, 4)
        assert told.startswith("each of 4 shards reads all of 3 files, '0.jsonl' to '2.jsonl', (1.2 GB) with Jso")
        assert "Put .shard_pieces() right behind JsonlReader, in the place of .sharding_filter()" in told
        assert built(graph, 1) == []
    url = JsonlReader("memory://nowhere/a.jsonl").shuffle().sharding_filter()
    assert "reads all of 'a.jsonl' with JsonlReader" in built(url, 128)[0]
    (told,) = built(FilePieces(tmp_path / "*", "lines").read_jsonl().sharding_filter(), 4)
    assert "Put .sharding_filter() right behind FilePieces, before JsonlReader" in told
    os.rename(tmp_path / "1.jsonl", tmp_path / "1.gz")
    os.truncate(tmp_path / "1.gz", 1_200_000_000)
    for whole, way_out in (
        (
            JsonlReader(tmp_path / "1.gz").sharding_filter(),
            "so store the files uncompressed, or write the data in more",
        ),
        (CsvReader(tmp_path / "1.gz").map(str).sharding_filter(), "so write the data in more files, then put .shard"),
        (TFRecordReader(tmp_path / "1.gz", compression=None).map(str).sharding_filter(), "shard_pieces(piece_bytes="),
    ):
        (told,) = built(whole, 4)
        assert way_out in told
    for quiet in (
        JsonlReader(tmp_path / "*.jsonl").shard_pieces(),
        JsonlReader(tmp_path / "2.jsonl").shuffle().sharding_filter(),  # it is small
        PathList(tmp_path / "*").sharding_filter().read_jsonl(),
        TFRecordReader(tmp_path / "*").sharding_filter(),  # which passes over records unread
    ):
        assert built(quiet, 3) == []
    assert built(url, 2) == []


def test_a_source_that_every_shard_reads_whole_is_named() -> None:
    graph = IterableWrapper(range(8)).sharding_filter().zip(IterableWrapper("abcdefgh").map(str.upper))
    with pytest.warns(ReplicatedSourceWarning, match=r"each of 2 shards reads all items of IterableWrapper: no shard"):
        DataLoader2(graph, reading_service=InProcessReadingService(num_shards=2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DataLoader2(graph)


# --- what torchdata had, what does not exist, what cannot move ---


def test_a_form_that_does_not_exist_is_explained() -> None:
    source = IterableWrapper([1])
    for name, why in {
        "mapp": "did you mean 'map'",
        "shufle": "'shuffle'",
        "zzz": "a form of your own is there",
    }.items():
        assert not hasattr(source, name)
        with pytest.raises(AttributeError, match=why):
            getattr(source, name)


def test_a_generator_is_refused_with_the_way_out() -> None:
    with pytest.raises(NotSerializableError, match="give an object whose __iter__ starts it"):
        DataLoader2(
            IterableWrapper(n for n in range(3)).sharding_filter(), reading_service=MultiProcessingReadingService(1)
        )


def test_an_open_file_is_refused_in_a_graph() -> None:
    with open(__file__) as file, pytest.raises(NotSerializableError, match="cannot pickle the open file .* Open files"):
        DataLoader2(IterableWrapper(file).sharding_filter(), reading_service=MultiProcessingReadingService(1))


@pytest.mark.parametrize("service", [None, MultiProcessingReadingService(1)])
def test_a_graph_that_is_too_deep_is_refused_as_that(service: Any) -> None:
    graph = IterableWrapper(range(4)).sharding_filter()
    for _ in range(400):
        graph = graph.map(abs)
    with pytest.raises(GraphError, match="more than 142 nodes stand one behind the other"):
        list(DataLoader2(graph, reading_service=service))
    with pytest.raises(GraphError, match="nodes stand one behind the other"):
        iter(graph)


@pytest.mark.parametrize("make", [InProcessReadingService, partial(MultiProcessingReadingService, 1)])
def test_a_graph_as_deep_as_is_allowed_runs(make: Any) -> None:
    graph = IterableWrapper(range(4)).sharding_filter()
    for _ in range(138):
        graph = graph.map(abs)
    with DataLoader2(graph, reading_service=make()) as loader:
        assert list(loader) == [0, 1, 2, 3]


def test_a_data_frame_is_refused_with_the_way_out() -> None:
    class DataFrame:
        columns = ("a", "b")

        def __iter__(self) -> Iterator[str]:
            return iter(self.columns)

    with pytest.raises(TypeError, match=r'iterating one gives its columns.*df.to_dict\("records"\)'):
        IterableWrapper(DataFrame())


def test_the_plain_integer_that_a_check_gives_is_the_one_that_is_used() -> None:
    """A numpy integer that is checked and kept as it is makes a state that no ``torch.load`` reads."""
    thrown_away = []
    for package in ("torchpipe", "reading_services"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                    called = node.value.func
                    name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
                    if name in ("check_count", "check_seed"):
                        thrown_away.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not thrown_away


def test_what_a_loader_over_a_graph_does_not_take_is_said_with_the_way_to_write_it() -> None:
    options: Any = {"num_workers": 2}
    with pytest.raises(TypeError, match=r"no argument 'num_workers': .* reading_service=MultiProcessingReadingService"):
        DataLoader2(IterableWrapper([1]), **options)
    service: Any = InProcessReadingService()
    with pytest.raises(TypeError, match="must be a function .*: say reading_service="):
        DataLoader2(IterableWrapper([1]), service)


def test_a_state_of_the_other_kind_of_loader_is_said_to_be_one() -> None:
    graph, dataset = DataLoader2(IterableWrapper([1])), DataLoader([1])  # type: ignore[arg-type]
    with pytest.raises(StateMismatchError, match="that of a graph"):
        dataset.load_state_dict(graph.state_dict())
    with pytest.raises(StateMismatchError, match="that of a DataLoader, "):
        graph.load_state_dict(dataset.state_dict())
