"""``shard_pieces`` behind a stream of Hugging Face's: each shard reads its own files alone, every row once."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets.distributed import split_dataset_by_node

from reading_services import MultiProcessingReadingService
from tests.laws.executors import pids
from tests.reads import bytes_read_by
from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.errors import GraphError, ReplayWarning, StateMismatchError
from torchpipe.iter import HuggingFaceReader
from torchpipe.node.datapipe import iterate
from torchpipe.testing import check_node

FILES, ROWS = 10, 30


def generated(files: list[int]) -> Any:
    for file in files:
        for row in range(ROWS):
            yield {"id": file * ROWS + row}


def from_generator(_: Path) -> Any:
    return datasets.IterableDataset.from_generator(generated, gen_kwargs={"files": list(range(FILES))})


def from_table(_: Path) -> Any:
    return datasets.Dataset.from_dict({"id": range(FILES * ROWS)}).to_iterable_dataset(num_shards=FILES)


def from_files(folder: Path) -> Any:
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        pq.write_table(pa.table({"id": ids, "x": [bytes(30_000)] * ROWS}), folder / f"{number}.parquet",
                       compression=None, use_dictionary=False)  # fmt: skip
    files = [str(folder / f"{number}.parquet") for number in range(FILES)]
    return datasets.load_dataset("parquet", data_files=files, split="train", streaming=True, cache_dir=str(folder))


MAKERS: list[Callable[[Path], Any]] = [from_generator, from_table, from_files]


def ids(rows: Any) -> list[int]:
    return [row["id"] for row in rows]


@pytest.mark.parametrize("make", MAKERS)
def test_L1_the_shards_have_each_row_once(make: Any, tmp_path: Path) -> None:
    node = HuggingFaceReader(make(tmp_path)).shard_pieces()
    assert "StreamPieces  [10 shards of the stream]" in DataLoader2(node).explain()
    for shards in (1, 2, 3, 8, 10):
        parts = [ids(iterate(node, seed=3, shard=shard, num_shards=shards)) for shard in range(shards)]
        assert sorted(chain(*parts)) == list(range(FILES * ROWS))
        assert all(parts)
    first, second = (ids(iterate(node, seed=3, epoch=epoch)) for epoch in (0, 1))
    assert first != second
    assert ids(iterate(HuggingFaceReader(make(tmp_path)).shard_pieces(shuffle=False))) == list(range(FILES * ROWS))
    with pytest.raises(GraphError, match=r"stream of 10 shards \(its files\) cannot be divided among 128 shards.*118"):
        next(iterate(node, shard=0, num_shards=128))


@pytest.mark.parametrize("make", MAKERS[:2])
def test_L2_exact_resume(make: Any, tmp_path: Path) -> None:
    check_node(lambda: HuggingFaceReader(make(tmp_path)).shard_pieces(), num_shards=3, positions=6)
    check_node(lambda: HuggingFaceReader(make(tmp_path), batch_size=7).shard_pieces(), epochs=[0], positions=5)


def test_L2_a_stream_that_shuffles_itself_is_replayed_within_a_piece() -> None:
    def make() -> Any:
        return HuggingFaceReader(from_generator(Path()).shuffle(seed=1, buffer_size=5)).shard_pieces()

    assert sorted(ids(iterate(make(), seed=1))) == list(range(FILES * ROWS))
    check_node(make, epochs=[1], num_shards=2, positions=5)
    with DataLoader2(make()) as loader:
        rows = ids(islice(iter(loader), 40))
        state = loader.state_dict()
        with pytest.warns(ReplayWarning, match="shuffle buffer"):
            loader.load_state_dict(state)
            rows += ids(loader)
        assert sorted(rows) == list(range(FILES * ROWS))


def test_L6_a_garbage_collection_does_not_wait_for_the_end_of_a_stream() -> None:
    """It may come in a thread of the stream that is being started, and then both would wait for ever."""
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()
    gc.collect()

    def rows() -> Any:
        try:
            yield from generated([0])
        finally:
            begun.set()
            goes_on.wait(60)
            ended.set()

    stream = iterate(HuggingFaceReader(datasets.IterableDataset.from_generator(rows)))
    next(stream)
    del stream
    gc.collect()
    assert begun.wait(60)
    assert not ended.is_set()
    goes_on.set()
    assert ended.wait(60)


def loader_of(workers: int | None) -> DataLoader2[Any]:
    service: Any = (
        InProcessReadingService(num_shards=4)
        if workers is None
        else MultiProcessingReadingService(workers, num_shards=4)
    )
    loader: DataLoader2[Any] = DataLoader2(
        HuggingFaceReader(from_generator(Path())).shard_pieces(), reading_service=service
    )
    loader.seed(5)
    return loader


def test_L1_L3_L4_one_stream_in_workers_that_are_killed_and_a_state_moves() -> None:
    with loader_of(None) as alone:
        expected = [ids(alone) for _ in range(2)]
    with loader_of(2) as loader:
        iterator = iter(loader)
        got = ids(islice(iterator, 130))
        os.kill(pids(loader)[0], signal.SIGKILL)
        got += ids(islice(iterator, 10))
        state = loader.state_dict()
        assert got + ids(iterator) == expected[0]
        assert ids(loader) == expected[1]
    with loader_of(1) as again:
        again.load_state_dict(state)
        assert got + ids(again) == expected[0]
        assert ids(again) == expected[1]


def test_L5_a_shard_reads_its_share_of_the_bytes(tmp_path: Path) -> None:
    stream = from_files(tmp_path)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.parquet"))
    node = HuggingFaceReader(stream).shard_pieces()
    next(iterate(node))  # what is read once for all
    for shards in (1, 2, 5, 10):
        count = bytes_read_by(lambda shards=shards: list(iterate(node, shard=shards - 1, num_shards=shards)))  # type: ignore[misc]
        assert 0.9 * size / shards < count < 1.1 * size / shards, (shards, count * shards / size)


def test_L7_what_cannot_be_divided_so_is_refused() -> None:
    stream = from_generator(Path())
    with pytest.raises(TypeError, match=r"read by index: put shuffle\(\) and sharding_filter\(\) behind"):
        HuggingFaceReader(datasets.Dataset.from_dict({"id": [1]})).shard_pieces()
    with pytest.raises(TypeError, match="divided already"):
        HuggingFaceReader(stream).shard_pieces().shard_pieces()
    with pytest.raises(TypeError, match="shuffle must be True or False"):
        HuggingFaceReader(stream).shard_pieces(shuffle="yes")
    with pytest.raises(GraphError, match="two sharding points"):
        DataLoader2(HuggingFaceReader(stream).shard_pieces().sharding_filter())


def numbered(row: Any, number: int) -> Any:
    return {"id": row["id"] + number}


def test_L7_a_stream_whose_shards_have_other_rows_by_themselves_is_refused() -> None:
    stream, table = from_generator(Path()), from_table(Path())
    interleave = datasets.interleave_datasets
    wrong = {
        r"its take\(n\) counts rows of the whole": [stream.take(25), table.take(5).map(dict), stream.shuffle().take(2)],
        r"its skip\(n\) counts": [stream.skip(25), datasets.concatenate_datasets([stream, table.skip(3)])],
        "stopping_strategy='first_exhausted'": [interleave([stream, table])],
        "stopping_strategy='all_exhausted'": [
            interleave([stream, table], [0.5, 0.5], stopping_strategy="all_exhausted")
        ],
        "with_indices=True": [stream.map(numbered, with_indices=True)],
        "split_dataset_by_node": [split_dataset_by_node(stream, 0, 3)],
    }
    for reason, streams in wrong.items():
        for refused in streams:
            with pytest.raises(TypeError, match=f"{reason}.*sharding_filter"):
                HuggingFaceReader(refused).shard_pieces()
            with DataLoader2(HuggingFaceReader(refused).sharding_filter()) as loader:
                next(iter(loader))
    one = datasets.IterableDataset.from_generator(generated, gen_kwargs={"files": [1]}).take(4)
    assert ids(HuggingFaceReader(one).shard_pieces()) == [30, 31, 32, 33]
    both = interleave([stream, table], stopping_strategy="all_exhausted_without_replacement")
    node = HuggingFaceReader(both).shard_pieces()
    parts = [ids(iterate(node, shard=shard, num_shards=3)) for shard in range(3)]
    assert sorted(chain(*parts)) == sorted([*range(FILES * ROWS)] * 2)


def test_L7_a_state_of_a_stream_is_one_of_its_files_in_order(tmp_path: Path) -> None:
    from_files(tmp_path)
    names = [str(tmp_path / f"{number}.parquet") for number in range(FILES)]

    def loader(files: list[str]) -> DataLoader2[Any]:
        stream = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
        return DataLoader2(HuggingFaceReader(stream).shard_pieces())

    with loader(names) as first:
        first.seed(2)
        expected = ids(first)
        rows = ids(islice(iter(first), 33))
        state = first.state_dict()
    with loader(names[::-1]) as other, pytest.raises(StateMismatchError, match=r"StreamPieces found has changed"):
        other.load_state_dict(state)
        list(other)
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in names:
        os.rename(name, moved / os.path.basename(name))
    with loader([str(moved / os.path.basename(name)) for name in names]) as again:
        again.load_state_dict(state)
        assert len(rows + ids(again)) == len(expected)


def test_options_of_files_are_refused_for_streams() -> None:
    node = HuggingFaceReader(from_generator(Path()))
    for options in ({"piece_bytes": 5}, {"plan_file": "plan"}):
        with pytest.raises(ValueError, match=f"{next(iter(options))}=.* is for readers of files.* Leave"):
            node.shard_pieces(**options)


def of_any(files: list[Any]) -> Any:
    for file in files:
        yield from ({"id": row, "of": repr(file)} for row in range(ROWS))


@pytest.mark.parametrize(
    "make",
    [
        lambda number: Path(f"{number}.bin"),
        lambda number: ("part", number),
        lambda number: {"path": Path(f"{number}.bin"), "rows": (0, number)},
        lambda number: np.int64(number),
        lambda number: np.arange(number, number + 3),
    ],
)
def test_L7_streams_of_other_arguments_than_text_are_told_apart(make: Callable[[int], Any]) -> None:
    def loader(numbers: list[int]) -> DataLoader2[Any]:
        stream = datasets.IterableDataset.from_generator(of_any, gen_kwargs={"files": list(map(make, numbers))})
        return DataLoader2(HuggingFaceReader(stream).shard_pieces())

    with loader([0, 1, 2]) as first:
        running = iter(first)
        for _ in range(ROWS + 3):
            next(running)
        state, rest = first.state_dict(), list(running)
    with loader([0, 1, 2]) as same:
        same.load_state_dict(state)
        assert list(same) == rest
    for others in ([1, 0, 2], [0, 1, 3]):
        with loader(others) as other, pytest.raises(StateMismatchError, match="StreamPieces found has changed"):
            other.load_state_dict(state)
            next(iter(other))
