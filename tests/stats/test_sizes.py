"""Bytes of nodes: what has a size, that a sample speaks for the rest, and where it is shown."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from reading_services import InProcessReadingService, MultiProcessingReadingService, SequentialReadingService
from tests.measured import measured
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import FileOpener, IterableWrapper, PathList
from torchpipe.machine import bytes_of
from torchpipe.stats import NodeStats


class Pair(NamedTuple):
    image: Any
    label: Any


class Own:
    nbytes = 5  # of which nothing is asked


class Surprising(dict[str, Any]):
    def values(self) -> Any:
        raise AssertionError("code of the user's was run")


@pytest.mark.parametrize(
    ("item", "size"),
    [
        (torch.zeros(3, 4), 48),
        (torch.zeros(8, dtype=torch.uint8)[::2], 4),
        (np.zeros((2, 2)), 32),
        (np.float32(1), 4),
        (b"12345", 5),
        (bytearray(7), 7),
        (memoryview(bytes(9)), 9),
        ("text", 4),
        ("\N{LATIN SMALL LETTER A WITH DIAERESIS}\ud800", 5),
        (7, 0),
        (None, 0),
        ({"x": torch.zeros(2), "y": 1, "key": "abc"}, 11),
        (Surprising(x=b"12"), 2),
        ([b"123"] * 10_000, 30_000),
        (Pair(np.zeros(2, np.uint8), 1), 2),
        ([], 0),
        (object(), None),
        (Own(), None),
        ((b"12", object()), None),
        (torch.zeros(2, device="meta"), 8),
    ],
    ids=lambda value: type(value).__name__,  # not repr(): with an address in it, no two processes collect the same
)
def test_what_has_a_size(item: Any, size: int | None) -> None:
    assert bytes_of(item) == size


def test_a_list_in_itself_has_none() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert bytes_of(endless) is None


def nodes_of(graph: Any, service: Any = None) -> dict[str, NodeStats]:
    with measured(DataLoader2(graph, reading_service=service)) as loader:
        for _ in loader:
            pass
        stats = loader.stats()
    return {node.name.partition("(")[0]: node for node in stats.nodes}


def as_bytes(number: int) -> bytes:
    return bytes(number % 100 + 950)


def as_array(item: bytes) -> Any:
    return np.zeros(10 * len(item), np.uint8)


SERVICES: dict[str, Callable[[], Any]] = {
    "in process": InProcessReadingService,
    "workers": lambda: MultiProcessingReadingService(2, "fork"),
    "sequential": lambda: SequentialReadingService(InProcessReadingService(num_shards=2)),
}


@pytest.mark.parametrize("name", SERVICES)
def test_nodes_tell_the_bytes_of_what_they_hand_on(name: str) -> None:
    graph = IterableWrapper(range(2000)).sharding_filter().map(as_bytes).map(as_array).batch(10).map(len)
    with measured(DataLoader2(graph, reading_service=SERVICES[name]())) as loader:
        assert list(loader) == [10] * 200
        stats = loader.stats()
    source, sharded, made, arrays, batches, lengths = stats.nodes
    whole = sum(len(as_bytes(number)) for number in range(2000))
    assert (source.bytes, sharded.bytes, lengths.bytes) == (None, None, None)  # numbers
    assert made.bytes == pytest.approx(whole, rel=0.05)
    assert arrays.bytes == pytest.approx(10 * whole, rel=0.05)
    assert batches.bytes == pytest.approx(10 * whole, rel=0.05)


def test_a_sample_speaks_for_what_is_not_timed_any_more() -> None:
    graph = IterableWrapper([b"1234"] * 8).cycle(5_000).sharding_filter()
    node = nodes_of(graph)["ShardingFilter"]
    assert not node.exact
    assert node.bytes == 4 * (node.items or 0)
    assert node.items == pytest.approx(40_000, rel=0.1)


def test_short_epochs_are_known_exactly() -> None:
    nodes = nodes_of(IterableWrapper([bytes(number) for number in range(30)]).batch(7))
    assert nodes["IterableWrapper"].bytes == nodes["Batcher"].bytes == sum(range(30))


def test_open_files_have_their_length(tmp_path: Path) -> None:
    for number in range(4):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as archive:
            for name in "ab":
                member = tarfile.TarInfo(f"{name}.bin")
                member.size = 1000
                archive.addfile(member, io.BytesIO(bytes(1000)))
    paths = sorted(str(path) for path in tmp_path.iterdir())
    names = sum(map(len, paths))
    nodes = nodes_of(FileOpener(IterableWrapper(paths), mode="rb"))
    stored = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert nodes["IterableWrapper"].bytes == names
    assert nodes["FileOpener"].bytes == names + stored
    samples = nodes_of(PathList(paths).sharding_filter().read_webdataset(decode=False))["WebDatasetReader"]
    assert (samples.bytes or 0) >= 8000


def test_columns_of_tables(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"x": np.arange(1000, dtype=np.float64)})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    assert bytes_of(table) == 8000
    node = nodes_of(PathList(str(tmp_path / "t.parquet")).read_parquet(batch_size=100))["ParquetReader"]
    assert node.bytes == 8000


def test_the_device_stage_tells_what_it_has_moved() -> None:
    graph = IterableWrapper(range(64)).sharding_filter().map(torch.tensor).batch(8).collate().to_device("cpu")
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(2, "fork")) as loader:
        assert len(list(loader)) == 8
        stats = loader.stats()
    assert stats.nodes[-1].name.startswith("ToDevice")
    assert stats.nodes[-1].bytes == stats.stages[0].feed.moved_bytes == 64 * 8
    assert stats.nodes[0].bytes is None  # not measured


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}], ids=repr)
def test_a_dataloader_tells_of_samples_and_batches(options: dict[str, Any]) -> None:
    data = [(torch.zeros(10), number) for number in range(200)]
    with measured(DataLoader(data, batch_size=10, **options)) as loader:  # type: ignore[arg-type]
        assert len(list(loader)) == 20
        _, reading, collating = loader.stats().nodes
    assert reading.bytes == 200 * 40
    assert collating.bytes == 200 * (40 + 8)
