"""More graphs for the fuzz test: branches, what is packed, mixed, cached, parsed and read from files.

Each is made with a folder of its own, and the same one again reads the same files.
"""

from __future__ import annotations

import io
import json
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from tests.state.fuzz_graphs import safe, some_rows, tell, text_file
from torchpipe.iter import IterableWrapper, ParquetReader, SqlReader
from torchpipe.map import SequenceWrapper

__all__ = ["NODE_GRAPHS", "RAISES"]


def number(item: Any) -> int:
    """One for any item, that of a forged state included: what user code raises about such is its own affair."""
    return item if type(item) is int else len(safe(item))


def third(item: Any) -> int:
    return number(item) % 3


def sized(item: Any) -> list[int]:
    return list(range(number(item) % 5 + 1))


def size(item: Any) -> int:
    return min(5, len(item)) if isinstance(item, list | str) else 1


def tokens(item: Any) -> dict[str, Any]:
    return {"input_ids": np.arange(number(item) % 7 + 1)}


def named(item: int) -> tuple[str, Any]:
    return f"file {item}", text_file(item)


def moody(item: Any) -> Any:
    if number(item) % 4 == 3:
        raise ValueError(f"no {item}")
    return item


def triple(item: Any) -> tuple[Any, Any, Any]:
    return item, number(item) + 1, -number(item)


def paths(folder: Path, ending: str, write: Callable[[Path, int], None], count: int = 3) -> Any:
    names = [folder / f"{number}.{ending}" for number in range(count)]
    for number, path in enumerate(names):
        if not path.exists():
            write(path, number)
    return IterableWrapper([str(path) for path in names])


def write_lines(path: Path, number: int) -> None:
    path.write_text("".join(f"{number} zwölf {line}\n" for line in range(9)), "utf-8")


def write_json_lines(path: Path, number: int) -> None:
    path.write_text("".join(json.dumps({"n": [number, line]}) + "\n" for line in range(9)))


def write_csv(path: Path, number: int) -> None:
    path.write_text("a,b\n" + "".join(f'{number},"x\n{line}"\n' for line in range(9)))


def write_table(path: Path, number: int) -> None:
    table = pyarrow.table({"a": list(range(number, number + 9)), "b": [str(line) for line in range(9)]})
    pyarrow.parquet.write_table(table, path, row_group_size=4)


def write_tar(path: Path, number: int) -> None:
    with tarfile.open(path, "w") as tar:
        for sample in range(5):
            for ending, content in (("txt", f"{number} {sample}"), ("cls", str(sample))):
                info = tarfile.TarInfo(f"{sample:03}.{ending}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content.encode()))


def write_zip(path: Path, number: int) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in range(5):
            archive.writestr(f"{name}.txt", f"{number} {name}")


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path)


def _fork(folder: Path) -> Any:
    first, second = IterableWrapper(range(24)).shuffle(buffer_size=5).sharding_filter().fork(2)
    return first.map(tell).zip(second.batch(2), second.shuffle(buffer_size=3))


def _demux(folder: Path) -> Any:
    branches = IterableWrapper(range(40)).shuffle(buffer_size=5).sharding_filter().demux(3, third)
    return branches[0].concat(branches[2].map(tell), branches[1])


def _split(folder: Path) -> Any:
    first, second = IterableWrapper(range(24)).random_split({"a": 0.6, "b": 0.4}, seed=1, total_length=24)
    return first.sharding_filter().mux_longest(second.sharding_filter()).map(tell)


def _packed(folder: Path, strategy: Any = "concat") -> Any:
    bins = None if strategy == "concat" else 3
    source = IterableWrapper(range(30)).shuffle(buffer_size=5).sharding_filter().map(tokens)
    return source.pack(8, strategy=strategy, bins=bins)


def _bucketed(folder: Path) -> Any:
    source = IterableWrapper(range(40)).sharding_filter().map(sized)
    return source.bucket_by_length([2, 4], [2, 3, 2], size).unbatch().dynamic_batch(7, size, padded=True)


def _sorted(folder: Path) -> Any:
    source = IterableWrapper(range(30)).shuffle(buffer_size=6).sharding_filter()
    return source.sort(5, safe).window_shuffle(4).batch(3).unbatch().map(tell)


def _grouped(folder: Path) -> Any:
    source = IterableWrapper(range(30)).shuffle(buffer_size=6).sharding_filter()
    return source.groupby(third, buffer_size=8, group_size=3, guaranteed_group_size=1, keep_key=True).map(tell)


def _rebatched(folder: Path) -> Any:
    source = IterableWrapper(range(40)).sharding_filter().map(some_rows).batch(2)
    return source.rebatch(3).enumerate().take(9)


def _mixed(folder: Path) -> Any:
    first = IterableWrapper(range(9)).shuffle(buffer_size=4).sharding_filter()
    second = IterableWrapper(range(100, 130)).sharding_filter().map(tell)
    return first.mix(second, weights=[0.3, 0.7], stop="all_exhausted")


def _mixed_round(folder: Path) -> Any:
    first = IterableWrapper(range(9)).shuffle(buffer_size=4).sharding_filter()
    second = IterableWrapper(range(100, 120)).sharding_filter()
    return first.mix(second, weights={0: [0.5, 0.5], 6: [0.2, 0.8]}, stop="first_exhausted").map(tell)


def _interleaved(folder: Path) -> Any:
    source = paths(folder, "txt", write_lines, 5).shuffle(buffer_size=3).sharding_filter()
    return source.interleave(open_text, cycle_length=2, block_length=2).map(tell)


def open_text(path: Any) -> Any:
    return open(path, encoding="utf-8") if isinstance(path, str) and path.endswith("0.txt") else iter([safe(path)])


def _cached(folder: Path) -> Any:
    return IterableWrapper(range(24)).shuffle(buffer_size=5).sharding_filter().map(tell).cache(chunk_items=4).map(tell)


def _cached_on_disk(folder: Path) -> Any:
    source = IterableWrapper(range(24)).sharding_filter().map(tell)
    return source.cache(folder / "cache", chunk_items=4).shuffle(buffer_size=3)


def _skipping(folder: Path) -> Any:
    return IterableWrapper(range(40)).shuffle(buffer_size=4).sharding_filter().map(moody).on_error("skip").map(tell)


def _threads(folder: Path) -> Any:
    source = IterableWrapper(range(30)).shuffle(buffer_size=5).sharding_filter()
    return source.parallel_map(triple, num_threads=2, buffer_size=4).parallel_map(safe, num_threads=2)


def _keyed(folder: Path) -> Any:
    reference = IterableWrapper(range(40)).shuffle(buffer_size=9)
    source = IterableWrapper(range(20)).sharding_filter().zip_with_iter(reference, number, keep_key=True)
    return source.zip_with_map(SequenceWrapper(list(range(50))), first).map(tell)


def first(item: Any) -> Any:
    return number(item) % 50


def _lines(folder: Path) -> Any:
    return paths(folder, "txt", write_lines).sharding_filter().read_lines().shuffle(buffer_size=4).map(tell)


def _json_lines(folder: Path) -> Any:
    return paths(folder, "jsonl", write_json_lines).shuffle(buffer_size=2).sharding_filter().read_jsonl().map(tell)


def _csv(folder: Path) -> Any:
    return paths(folder, "csv", write_csv).sharding_filter().read_csv().map(tell)


def _tables(folder: Path) -> Any:
    return ParquetReader(paths(folder, "parquet", write_table).shuffle(buffer_size=2)).sharding_filter().map(tell)


def _table_blocks(folder: Path) -> Any:
    return paths(folder, "parquet", write_table).sharding_filter().read_parquet(batch_size=2, filter=None).map(tell)


def _web(folder: Path) -> Any:
    return paths(folder, "tar", write_tar).sharding_filter().read_webdataset().shuffle(buffer_size=3).map(tell)


def _zips(folder: Path) -> Any:
    return paths(folder, "zip", write_zip).sharding_filter().read_zip().map(tell)


def _sql(folder: Path) -> Any:
    path = folder / "rows.sqlite"
    if not path.exists():
        with connect(path) as database:
            database.execute("create table rows (id integer primary key, name text)")
            database.executemany("insert into rows values (?, ?)", [(number, str(number)) for number in range(40)])
        database.close()
    return SqlReader(partial(connect, path), "rows", key="id", page_size=4).sharding_filter().map(tell)


NODE_GRAPHS: dict[str, Callable[[Path], Any]] = {
    function.__name__.strip("_").replace("_", " "): function
    for function in (
        _fork, _demux, _split, _packed, _bucketed, _sorted, _grouped, _rebatched, _mixed, _mixed_round, _interleaved,
        _cached, _cached_on_disk, _skipping, _threads, _keyed, _lines, _json_lines, _csv, _tables, _table_blocks, _web,
        _zips, _sql,
    )
}  # fmt: skip
NODE_GRAPHS["best fit"] = partial(_packed, strategy="best_fit")

RAISES: dict[str, tuple[type[Exception], ...]] = {
    "best fit": (TypeError,),
    "csv": (ValueError,),
    "files": (TypeError,),
    "json lines": (ValueError,),
    "keyed": (ValueError, BufferError),
    "opened": (ValueError,),
    "packed": (TypeError,),
    "rebatched": (TypeError, ValueError),
    "split": (ValueError,),
    "sql": (sqlite3.Error, OverflowError),
}
"""What these say of items that do not belong together, or of what stands in the midst of a line: a forger's choice."""
