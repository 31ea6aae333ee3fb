"""Graphs of torchdata's other nodes for the fuzz test: ``GRAPHS`` are made with a folder each."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.state.fuzz_graphs import Walk, keep, lazily, read, safe, tell
from tests.state.fuzz_nodes import named, paths, size, sized, triple, write_csv, write_tar
from torchpipe.iter import IterableWrapper

__all__ = ["GRAPHS", "RAISES"]


def _unzip(folder: Path) -> Any:
    left, _, right = IterableWrapper(range(20)).map(triple).sharding_filter().unzip(3)
    return left.skip(3).zip(right.map(tell))


def _round_robin(folder: Path) -> Any:
    first, second = IterableWrapper(range(24)).sharding_filter().round_robin_demux(2)
    return first.shuffle(buffer_size=4).mux(second).map(tell)


def _sized(folder: Path) -> Any:
    source = IterableWrapper(range(40)).shuffle(buffer_size=6).sharding_filter().map(sized)
    return source.max_token_bucketize(9, size, buffer_size=7).map(tell)


def _bucketbatched(folder: Path) -> Any:
    return IterableWrapper(range(40)).sharding_filter().bucketbatch(3, batch_num=2, bucket_num=2).map(tell)


def _flatmapped(folder: Path) -> Any:
    source = IterableWrapper(range(12)).sharding_filter()
    return source.shuffled_flatmap(Walk, buffer_size=3).shuffled_flatmap(lazily, buffer_size=2)


def _in_memory(folder: Path) -> Any:
    return IterableWrapper(range(12)).sharding_filter().in_memory_cache().cycle(2).map(tell)


def _batched_map(folder: Path) -> Any:
    source = IterableWrapper(range(30)).sharding_filter().map_batches(partial(map, tell), batch_size=4)
    return source.zip_longest(IterableWrapper(range(5)), fill_value=0)


def _parsed(folder: Path) -> Any:
    source = IterableWrapper(range(5)).sharding_filter().map(named)
    return source.readlines(return_path=False).filter(keep)


def _parsed_rows(folder: Path) -> Any:
    source = paths(folder, "csv", write_csv).sharding_filter().open_files().parse_csv_as_dict()
    return source.map(tell)


def _tars(folder: Path) -> Any:
    return paths(folder, "tar", write_tar).sharding_filter().open_files("rb").load_from_tar().map(read).webdataset()


def archive(number: int) -> Any:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name in range(4):
            info = tarfile.TarInfo(f"{number}-{name}")
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
    return f"{number}.tar", io.BytesIO(target.getvalue())


def _archives(folder: Path) -> Any:
    return IterableWrapper(range(5)).sharding_filter().map(archive).load_from_tar().map(read)


def _in_batches(folder: Path) -> Any:
    source = IterableWrapper(range(30)).shuffle(buffer_size=6).sharding_filter()
    return source.batch(3).in_batch_shuffle().unbatch().header(25).map(tell)


def _threads(folder: Path) -> Any:
    return IterableWrapper(range(30)).shuffle(buffer_size=5).sharding_filter().threadpool_map(safe, max_workers=2)


GRAPHS: dict[str, Callable[[Path], Any]] = {
    f"torchdata's {function.__name__.strip('_').replace('_', ' ')}": function
    for function in (
        _unzip, _round_robin, _sized, _bucketbatched, _flatmapped, _in_memory, _batched_map, _parsed, _parsed_rows,
        _tars, _archives, _in_batches, _threads,
    )
}  # fmt: skip
RAISES: dict[str, tuple[type[Exception], ...]] = {"torchdata's parsed rows": (ValueError,)}
"""What these say of what stands in the midst of a line: a forger's choice."""
