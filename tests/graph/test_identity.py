"""Every argument of every exported node: another value makes another graph, or the same stream.

A parameter without a row fails, so that whoever adds one decides.
"""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, SequentialSampler

import torchpipe.iter
import torchpipe.map
from torchpipe import DataLoader2
from torchpipe.errors import StateMismatchError
from torchpipe.formats.tfrecord import write_record
from torchpipe.graph import describe_graph, fingerprint
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper


def first(item: Any) -> Any:
    return item


def second(item: Any) -> Any:
    return item


def with_rng(item: Any, rng: Any) -> Any:
    return item


def with_rng_too(item: Any, rng: Any) -> Any:
    return item


async def later(item: Any) -> Any:
    return item


async def later_too(item: Any) -> Any:
    return item


def pairs(*items: Any) -> Any:
    return items


def numbers() -> Any:
    return IterableWrapper([3, 1, 2, 0])


def rows() -> Any:
    return IterableWrapper([[3, 1], [2, 0]])


def table() -> Any:
    return SequenceWrapper([[3, 1], [2, 0]])


# For each class: its inputs; arguments that it needs; for each parameter two values.
FN = (first, second)
FLAG, COUNT, NAMES = (False, True), (1, 2), (list("abcdefghi"), list("jklmnopqr"))
TEXT, CODING = {"encoding": ("utf-8", "latin-1")}, {"encoding": ("utf-8", "latin-1"), "errors": ("strict", "ignore")}
PACKING, PLACES = {"compression": ("gzip", "infer")}, {"storage_options": (None, {"anon": True})}
PARSING = {"skip_lines": (0, 1), "decode": FLAG, **CODING, "return_path": FLAG}
COLUMNS = {"input_col": (0, 1)}
MAPPED = {"fn": FN, "input_col": (0, 1), "output_col": (-1, 0, {"input_col": 0})}
TABLES = {
    "columns": NAMES,
    "filter": ([("x", ">=", 0)], [("x", ">=", 10)]),
    "batch_size": COUNT,
    "format": ("numpy", "torch", {"batch_size": 2}),
    "fill_null": (0, {"x": 1}),
    **PLACES,
}
CONNECTION = {"retries": COUNT, "kwargs": ({"anon": True}, {"anon": False})}
OPENING = {"kwargs_for_open": ({"encoding": "utf-8"}, {"encoding": "latin-1"}), **CONNECTION}
SAVING = {"mode": ("w", "wb"), "filepath_fn": FN}
READING = {"timeout": COUNT, "skip_on_error": FLAG, "retries": COUNT, "kwargs": ({"verify": True}, {"verify": False})}
DEALT = {"num_instances": (2, 3), "buffer_size": (10, 20)}
BUILT: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "ArrowReader": ("x.arrow", {}, TABLES),
    "BatchAsyncMapper": (
        numbers,
        {"async_fn": later, "batch_size": 2},
        {
            "async_fn": (later, later_too),
            "batch_size": COUNT,
            "input_col": (0, 1),
            "output_col": (-1, 0, {"input_col": 0}),
            "max_concurrency": COUNT,
            "flatten": FLAG,
        },
    ),
    "BatchMapper": (numbers, {"fn": first, "batch_size": 2}, {"fn": FN, "batch_size": COUNT, **COLUMNS}),
    "BatchPadder": (
        rows,
        {},
        {
            "pad_value": ({"x": 0}, {"x": 1}),
            "length": (range(1, 11), range(2, 12)),
            "multiple_of": COUNT,
            "side": ("left", "right"),
        },
    ),
    "Batcher": (
        numbers,
        {"batch_size": 3},
        {"batch_size": COUNT, "drop_last": FLAG, "wrapper_class": (list, tuple), "last": ("keep", "drop")},
    ),
    "BucketBatcher": (
        numbers,
        {"batch_size": 2},
        {
            "batch_size": COUNT,
            "drop_last": FLAG,
            "batch_num": COUNT,
            "bucket_num": COUNT,
            "sort_key": FN,
            "use_in_batch_shuffle": FLAG,
        },
    ),
    "Bz2FileLoader": (numbers, {}, {"length": COUNT}),
    "CSVDictParser": (numbers, {}, PARSING | {"fmtparams": ({"delimiter": ","}, {"delimiter": ";"})}),
    "CSVParser": (numbers, {}, PARSING | {"as_tuple": FLAG, "fmtparams": ({"delimiter": ","}, {"delimiter": ";"})}),
    "Cacher": (
        numbers,
        {},
        {
            "path": (None, "folder"),
            "max_bytes": (None, 100),
            "version": COUNT,
            "chunk_items": COUNT,
            "allow_pickle": FLAG,
            "lease_timeout_s": COUNT,
        },
    ),
    "Collator": (rows, {}, {"conversion": FN, "collate_fn": FN}),
    "Concater": ((numbers, numbers), {}, {}),
    "CsvReader": (
        "x.csv",
        {},
        {"columns": NAMES, "header": FLAG, **TEXT, **PACKING, **PLACES, "fmtparams": ({}, {"delimiter": ";"})},
    ),
    "Cycler": (numbers, {}, {"count": COUNT}),
    "DataFrameMaker": (
        rows,
        {},
        {
            "dataframe_size": COUNT,
            "dtype": (None, "int64"),
            "dtype_generator": FN,
            "columns": NAMES,
            "device": ("", "cpu"),
        },
    ),
    "Decompressor": (numbers, {}, {"file_type": ("gzip", "bz2")}),
    "Demultiplexer": (
        numbers,
        {"num_instances": 2, "classifier_fn": first},
        DEALT | {"classifier_fn": FN, "drop_none": FLAG},
    ),
    "Dropper": (rows, {"indices": 0}, {"indices": (list(range(9)), list(range(1, 10)))}),
    "DynamicBatcher": (
        rows,
        {"max_cost": 10},
        {
            "max_cost": COUNT,
            "cost_fn": FN,
            "padded": FLAG,
            "max_items": COUNT,
            "overflow": ("raise", "drop"),
        },
    ),
    "EndOnDiskCacheHolder": (
        lambda: numbers().on_disk_cache(filepath_fn=str),
        {},
        {"mode": ("wb", "wt"), "filepath_fn": FN, "same_filepath_fn": FLAG, "skip_read": FLAG, "timeout": COUNT},
    ),
    "Enumerator": (numbers, {}, {"starting_index": COUNT}),
    "Extractor": (numbers, {}, {"file_type": ("gzip", "bz2")}),
    "FSSpecFileLister": ("memory://x", {}, {"masks": (["*.a"] * 9, ["*.b"] * 9), **CONNECTION}),
    "FSSpecFileOpener": (numbers, {}, {"mode": ("r", "rb"), **OPENING}),
    "FSSpecSaver": (numbers, {}, SAVING | OPENING),
    "FileLister": (
        ".",
        {},
        {
            "masks": (["*.a"] * 9, ["*.b"] * 9),
            "recursive": FLAG,
            "abspath": FLAG,
            "non_deterministic": FLAG,
            "length": COUNT,
        },
    ),
    "FileOpener": (numbers, {}, {"mode": ("r", "rt"), **TEXT, "length": COUNT}),
    "Filter": (numbers, {"filter_fn": first}, {"filter_fn": FN, **COLUMNS}),
    "FlatMapper": (rows, {"fn": first}, {"fn": FN, **COLUMNS}),
    "Flattener": (rows, {}, {"indices": (list(range(9)), list(range(1, 10)))}),
    "Forker": (numbers, {"num_instances": 2}, DEALT | {"copy": (None, "deep")}),
    "FullSync": (numbers, {}, {"timeout": COUNT}),
    "GDriveReader": (numbers, {}, READING),
    "Grouper": (
        numbers,
        {"group_key_fn": first, "group_size": 3},
        {
            "group_key_fn": FN,
            "keep_key": FLAG,
            "buffer_size": (5, 6),
            "group_size": (2, 3),
            "guaranteed_group_size": (1, 2),
            "drop_remaining": FLAG,
        },
    ),
    "HashChecker": (
        numbers,
        {"hash_dict": {}},
        {"hash_dict": ({"a": "0"}, {"a": "1"}), "hash_type": ("md5", "sha256"), "rewind": FLAG},
    ),
    "Header": (numbers, {}, {"limit": COUNT}),
    "HttpReader": (numbers, {}, READING),
    "HuggingFaceReader": ("dataset", {}, {"batch_size": COUNT}),
    "InBatchShuffler": (rows, {}, {}),
    "InMemoryCacheHolder": (numbers, {}, {"size": COUNT}),
    "IndexAdder": (numbers, {}, {"index_name": ("a", "b")}),
    "Interleaver": (rows, {}, {"fn": FN, "cycle_length": COUNT, "block_length": COUNT}),
    "IoPathFileLister": ("memory://x", {}, {"masks": ("*.a", "*.b")}),
    "IoPathFileOpener": (numbers, {}, {"mode": ("r", "rb")}),
    "IoPathSaver": (numbers, {}, SAVING),
    "IterKeyZipper": (
        (numbers, numbers),
        {"key_fn": first},
        {
            "key_fn": FN,
            "ref_key_fn": FN,
            "keep_key": FLAG,
            "buffer_size": COUNT,
            "merge_fn": (pairs, functools.partial(pairs, 1)),
        },
    ),
    "IterableWrapper": (None, {"iterable": [1]}, {"iterable": ([1] * 99, [2] * 99), "deepcopy": FLAG}),
    "JsonParser": (numbers, {}, {"kwargs": ({"parse_int": int}, {"parse_int": float})}),
    "JsonlReader": ("x.jsonl", {}, TEXT | PACKING | PLACES),
    "LengthBucketer": (
        rows,
        {"boundaries": [3], "batch_size": 2},
        {
            "boundaries": (range(1, 10), range(2, 11)),
            "batch_size": COUNT,
            "length_fn": FN,
            "drop_last": FLAG,
        },
    ),
    "LengthSetter": (numbers, {"length": 4}, {"length": (4, 5)}),
    "LineReader": (numbers, {"decode": True}, PARSING | {"strip_newline": FLAG}),
    "MapKeyZipper": (
        (numbers, table),
        {"key_fn": first},
        {"key_fn": FN, "merge_fn": (pairs, functools.partial(pairs, 1)), "keep_key": FLAG},
    ),
    "MapToIterConverter": (table, {}, {"indices": ([0] * 9, [1] * 9)}),
    "Mapper": (numbers, {"fn": first}, MAPPED),
    "MaxTokenBucketizer": (
        rows,
        {"max_token_count": 9},
        {
            "max_token_count": (8, 9),
            "len_fn": FN,
            "min_len": COUNT,
            "max_len": COUNT,
            "buffer_size": (10, 20),
            "include_padding": FLAG,
        },
    ),
    "Mixer": (
        (numbers, numbers),
        {"weights": [1, 2]},
        {
            "weights": ([1, 2], [1, 3]),
            "by": ("samples", "tokens"),
            "stop": ("first_exhausted", "all_exhausted"),
        },
    ),
    "Multiplexer": ((numbers, numbers), {}, {}),
    "MultiplexerLongest": ((numbers, numbers), {}, {}),
    "OnDiskCacheHolder": (
        numbers,
        {},
        {
            "filepath_fn": FN,
            "hash_dict": ({"a": "0"}, {"a": "1"}),
            "hash_type": ("md5", "sha256"),
            "extra_check_fn": FN,
        },
    ),
    "OnError": (
        numbers,
        {"policy": "skip"},
        {"policy": ("skip", "raise"), "budget": COUNT, "errors": (OSError, ValueError)},
    ),
    "OnlineReader": (numbers, {}, READING),
    "Packer": (
        rows,
        {"length": 8},
        {
            "length": ({"x": 8}, {"x": 16}, {"strategy": "first_fit"}),
            "strategy": ("first_fit", "best_fit"),
            "bins": (1, 2, {"strategy": "first_fit"}),
            "max_sequences_per_bin": (1, 2, {"strategy": "first_fit"}),
            "overflow": ("raise", "drop"),
            "pad_value": ({"x": 0}, {"x": 1}),
            "keep": (("a",), ("b",)),
            "drop_last": FLAG,
        },
    ),
    "ParagraphAggregator": (numbers, {}, {"joiner": FN}),
    "ParallelMapper": (
        numbers,
        {"fn": first},
        MAPPED | {"num_threads": COUNT, "buffer_size": (8, 9), "rng": (False, True, {"fn": pairs})},
    ),
    "ParquetDataFrameLoader": (
        numbers,
        {},
        {"dtype": (None, "int64"), "columns": NAMES, "device": ("", "cpu"), "use_threads": FLAG},
    ),
    "ParquetReader": ("x.parquet", {}, TABLES | {"use_threads": FLAG}),
    "PathList": ("x.csv", {}, {}),
    "PinMemory": (numbers, {}, {"device": (None, "cpu"), "pin_memory_fn": (pairs, functools.partial(pairs, 1))}),
    "Prefetcher": (numbers, {}, {"buffer_size": COUNT}),
    "RandomMapper": (numbers, {"fn": with_rng}, {"fn": (with_rng, with_rng_too)}),
    "RandomSplitter": (
        numbers,
        {"weights": dict.fromkeys("abcdefghi", 1), "seed": 0, "target": "a"},
        {
            "weights": (dict.fromkeys("abcdefghij", 1), dict(zip("abcdefghij", range(1, 11)))),
            "seed": COUNT,
            "total_length": (4, 5),
            "target": ("a", "b"),
        },
    ),
    "RarArchiveLoader": (numbers, {}, {"length": COUNT}),
    "ReBatcher": (rows, {"batch_size": 2}, {"batch_size": COUNT, "drop_last": FLAG, "collated": FLAG}),
    "Repeater": (numbers, {"times": 2}, {"times": COUNT}),
    "Retrier": (
        numbers,
        {},
        {"attempts": COUNT, "errors": (OSError, ValueError), "backoff_s": COUNT, "max_backoff_s": COUNT},
    ),
    "RoundRobinDemultiplexer": (numbers, {"num_instances": 2}, DEALT),
    "RoutedDecoder": (numbers, {}, {"handlers": ((first,), (second,)), "key_fn": FN}),
    "RowGroupLister": ("x.parquet", {}, PLACES),
    "Rows2Columnar": (rows, {}, {"column_names": NAMES}),
    "S3FileLister": (
        numbers,
        {},
        {
            "length": COUNT,
            "request_timeout_ms": COUNT,
            "region": ("a", "b"),
            "masks": (["*.a"] * 9, ["*.b"] * 9),
            "storage_options": ({"anon": True}, {"anon": False}),
        },
    ),
    "S3FileLoader": (
        numbers,
        {},
        {
            "request_timeout_ms": COUNT,
            "region": ("a", "b"),
            "buffer_size": COUNT,
            "multi_part_download": FLAG,
            "storage_options": ({"anon": True}, {"anon": False}),
        },
    ),
    "SampleMultiplexer": (None, {}, {"pipes_to_weights_dict": (0.3, 0.4), "seed": COUNT}),
    "Sampler": (
        numbers,
        {},
        {
            "sampler": (SequentialSampler, RandomSampler),
            "sampler_args": ([], [], {"sampler": RandomSampler}),
            "sampler_kwargs": ({}, {"replacement": True}, {"sampler": RandomSampler}),
        },
    ),
    "Saver": (numbers, {}, SAVING),
    "ShardExpander": (numbers, {}, {}),
    "ShardingFilter": (
        numbers,
        {},
        {"sharding_group_filter": (None, torchpipe.iter.SHARDING_PRIORITIES.DISTRIBUTED)},
    ),
    "ShardingRoundRobinDispatcher": (
        numbers,
        {},
        {"sharding_group_filter": (None, torchpipe.iter.SHARDING_PRIORITIES.MULTIPROCESSING)},
    ),
    "ShuffledFlatMapper": (rows, {}, {"fn": FN, "input_col": (0, 1), "buffer_size": COUNT}),
    "Shuffler": (numbers, {}, {"buffer_size": COUNT, "unbatch_level": (0, 1)}),
    "Skipper": (numbers, {"count": 1}, {"count": COUNT}),
    "Slicer": (rows, {"index": 0}, {"index": (list(range(9)), list(range(1, 10))), "stop": COUNT, "step": COUNT}),
    "Sorter": (numbers, {"window": 2}, {"window": COUNT, "key_fn": FN, "reverse": FLAG}),
    "SqlReader": (
        None,
        {"connect": first, "table": "t", "key": "id"},
        {
            "connect": FN,
            "table": ("t", "u"),
            "query": ("select 1", "select 2", {"table": None}),
            "key": NAMES,
            "columns": NAMES,
            "page_size": COUNT,
            "paramstyle": ("qmark", "format"),
        },
    ),
    "StreamReader": (numbers, {}, {"chunk": COUNT}),
    "TFRecordLoader": (numbers, {}, {"spec": ({"x": ((), None)}, {"y": ((), None)}), "length": COUNT}),
    "TFRecordReader": (
        "x.tfrecord",
        {},
        {
            "spec": ({"x": ((), torch.int64)}, {"y": ((), torch.int64)}),
            "parse": FLAG,
            "verify": FLAG,
            **PACKING,
            **PLACES,
        },
    ),
    "Taker": (numbers, {"count": 1}, {"count": COUNT}),
    "TarArchiveLoader": (numbers, {}, {"mode": ("r:*", "r|"), "length": COUNT}),
    "TextLineReader": ("x.csv", {}, TEXT | PACKING | PLACES),
    "ThreadPoolMapper": (
        numbers,
        {"fn": first},
        MAPPED | {"scheduled_tasks": (8, 9), "max_workers": COUNT, "threadpool_kwargs": ({}, {})},
    ),
    "ToDevice": (numbers, {"device": "cpu"}, {"device": ("cpu", "cpu:0"), "prefetch": COUNT, "options": ({}, {})}),
    "UnBatcher": (rows, {}, {"unbatch_level": COUNT}),
    "UnZipper": (
        rows,
        {"sequence_length": 2},
        {"sequence_length": (2, 3), "buffer_size": (10, 20), "columns_to_skip": ([], [0])},
    ),
    "WebDataset": (numbers, {}, {}),
    "WebDatasetReader": (
        "x.tar",
        {},
        {
            "extensions": (["txt", "cls"], ["txt", "json"]),
            "decode": FLAG,
            "images": ("pil", "rgb8"),
            "handlers": ({"a": first}, {"a": second}),
            **PACKING,
            **PLACES,
        },
    ),
    "WindowShuffler": (numbers, {"window": 2}, {"window": COUNT}),
    "XzFileLoader": (numbers, {}, {"length": COUNT}),
    "ZipArchiveLoader": (numbers, {}, {"length": COUNT}),
    "ZipReader": ("x.zip", {}, {"mask": ("*.a", "*.b"), **PLACES}),
    "Zipper": ((numbers, numbers), {}, {}),
    "ZipperLongest": ((numbers, numbers), {}, {"fill_value": (list(range(9)), list(range(1, 10)))}),
    "map.Batcher": (
        table,
        {"batch_size": 2},
        {"batch_size": COUNT, "drop_last": FLAG, "wrapper_class": (list, tuple)},
    ),
    "map.Concater": ((table, table), {}, {}),
    "map.InMemoryCacheHolder": (table, {}, {}),
    "map.IterToMapConverter": (rows, {}, {"key_value_fn": FN}),
    "map.Mapper": (table, {"fn": first}, {"fn": FN}),
    "map.SequenceWrapper": (None, {"sequence": [1]}, {"sequence": ([1] * 99, [2] * 99), "deepcopy": FLAG}),
    "map.Shuffler": (table, {}, {"indices": ([0] * 9, [1] * 9), "computed": FLAG}),
    "map.TFRecordFile": (
        "x.tfrecord",
        {},
        {"spec": ({"x": ((), torch.int64)}, {"y": ((), torch.int64)}), "parse": FLAG, "verify": FLAG},
    ),
    "map.TokenFile": (
        "x.npy",
        {"length": 2},
        {
            "length": (2, 3),
            "step": COUNT,
            "dtype": (None, np.uint16),
            "tensor_dtype": (torch.int64, torch.int32),
        },
    ),
    "map.UnZipper": (table, {"sequence_length": 2}, {"sequence_length": (2, 3), "columns_to_skip": ([], [0])}),
    "map.Zipper": ((table, table), {}, {}),
}

# What is no argument to compare here: nodes, and data that have tests of their own.
INPUTS = {
    "datapipe",
    "datapipes",
    "source_datapipe",
    "source_dp",
    "ref_datapipe",
    "source_iterdatapipe",
    "map_datapipe",
    "root",
    "pathmgr",  # of iopath, which is not there any more
    "handler",
    "paths",
    "dataset",
}
NO_NODES = {"CompressionType", "DataChunk", "IterDataPipe", "SHARDING_PRIORITIES", "map.MapDataPipe"}
FROM_THE_HUB = {"HuggingFaceHubReader"}  # a form of HuggingFaceReader
# These do not alter the stream: threads, caches, how something is reached; or are compared in another way.
SAME = {
    "*.storage_options",
    "*.use_threads",
    "*.verify",
    "*.retries",
    "*.timeout",
    "*.region",
    "*.request_timeout_ms",
    "*.device",  # the CPU alone
    "FSSpecFileLister.kwargs",
    "FSSpecFileOpener.kwargs",
    "FSSpecSaver.kwargs",
    "GDriveReader.kwargs",
    "HttpReader.kwargs",
    "OnlineReader.kwargs",
    "Cacher.lease_timeout_s",
    "Cacher.max_bytes",
    "Cacher.path",
    "InMemoryCacheHolder.size",
    "Mixer.weights",  # of which those that begin later on may be others: its premise says which
    "Sampler.sampler_args",  # those of sampler_kwargs, by position
    "ShardingRoundRobinDispatcher.sharding_group_filter",  # takes one value
    "SqlReader.page_size",
    "ThreadPoolMapper.threadpool_kwargs",  # takes none
    "map.UnZipper.sequence_length",  # the number of parts: each is the same
}
MOVING = {"LengthSetter", "OnError", "PinMemory", "Prefetcher", "Retrier", "ToDevice"}  # no part of the identity
RUN_HERE = {"Cacher", "InMemoryCacheHolder", "LengthSetter", "OnError", "Prefetcher", "Retrier"}


def classes() -> dict[str, type]:
    found = {name: getattr(torchpipe.iter, name) for name in torchpipe.iter.__all__}
    found |= {f"map.{name}": getattr(torchpipe.map, name) for name in torchpipe.map.__all__}
    kinds = {name: cls for name, cls in found.items() if isinstance(cls, type)}
    return {name: cls for name, cls in kinds.items() if name not in NO_NODES | FROM_THE_HUB}


def parameters(name: str) -> set[str]:
    return set(inspect.signature(classes()[name]).parameters) - INPUTS


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.arange(20, dtype=np.uint16))
    for name in ("x.csv", "x.jsonl", "x.parquet", "x.arrow", "x.tar", "x.zip"):
        Path(name).write_text("a,b\n")
    with open("x.tfrecord", "wb") as file:
        write_record(file, b"ab")


def build(name: str, parameter: str, value: Any, extra: dict[str, Any]) -> Any:
    given, needed, _ = BUILT[name]
    cls: Any = classes()[name]
    if name == "SampleMultiplexer":
        weight, seed = (value, 0) if parameter == "pipes_to_weights_dict" else (0.5, value)
        return cls({numbers(): 0.5, numbers(): weight}, seed=seed)
    if given == "dataset":
        inputs: tuple[Any, ...] = (datasets.Dataset.from_dict({"x": [1, 2]}),)
    elif isinstance(given, str):
        inputs = (given,)
    else:
        made = () if given is None else given if isinstance(given, tuple) else (given,)
        inputs = tuple(make() for make in made)
    arguments = {**needed, **extra}
    match inspect.signature(cls).parameters[parameter].kind:
        case inspect.Parameter.VAR_KEYWORD:
            arguments |= value
        case inspect.Parameter.VAR_POSITIONAL:
            inputs += value
        case _:
            arguments[parameter] = value
    node = cls(*inputs, **arguments)
    return node[0] if isinstance(node, list | tuple) else node


def test_every_parameter_of_every_node_has_a_row() -> None:
    assert {name: parameters(name) for name in classes()} == {name: set(rows) for name, (_, _, rows) in BUILT.items()}


ROWS = [(name, parameter) for name, (_, _, rows) in BUILT.items() for parameter in rows if name != "PinMemory"]


@pytest.mark.parametrize(("name", "parameter"), ROWS)
@pytest.mark.usefixtures("files")
def test_another_value_is_another_graph_or_the_same_stream(name: str, parameter: str) -> None:
    extra: list[dict[str, Any]]
    one, other, *extra = BUILT[name][2][parameter]
    first, again, second = (build(name, parameter, value, *(extra or [{}])) for value in (one, one, other))
    assert fingerprint(first) == fingerprint(again)
    alike = name in MOVING or not {f"*.{parameter}", f"{name}.{parameter}"}.isdisjoint(SAME)
    assert (fingerprint(first) == fingerprint(second)) == alike
    if name in RUN_HERE and alike:
        assert list(first) == list(second) == list(numbers())


def refusal(saved: Any, here: Any) -> str:
    """What is said when a state of the one graph is loaded into the other, after one item."""
    loader = DataLoader2(saved)
    next(iter(loader))
    with pytest.raises(StateMismatchError) as caught:
        DataLoader2(here).load_state_dict(loader.state_dict())
    return str(caught.value)


def test_the_error_names_node_and_argument_with_both_sides(tmp_path: Path) -> None:
    def graph(boundaries: range, by: int) -> Any:
        return IterableWrapper([[0] * 3] * 9).map(functools.partial(pairs, by)).bucket_by_length(boundaries, 2)

    said = refusal(graph(range(1, 12), 1), graph(range(2, 13), 1))
    assert "The first node that differs, in its boundaries:" in said
    assert "(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)" in said
    assert "(2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)" in said
    assert "differs, in its fn:" in refusal(graph(range(1, 12), 1), graph(range(1, 12), 2))


def tokens(folder: Path, name: str, first: int, count: int = 20) -> str:
    folder.mkdir(exist_ok=True)
    np.save(folder / f"{name}.npy", np.arange(first, first + count, dtype=np.uint16))
    return str(folder / f"{name}.npy")


def test_files_of_tokens_count_by_name_size_and_order_but_not_by_folder(tmp_path: Path) -> None:
    one, two = (tokens(tmp_path / "a", name, first) for name, first in (("one", 0), ("two", 100)))
    graph = torchpipe.map.TokenFile([one, two], 5).shuffle()
    moved = [tokens(tmp_path / "b", name, first) for name, first in (("one", 0), ("two", 100))]
    assert fingerprint(torchpipe.map.TokenFile(moved, 5).shuffle()) == fingerprint(graph)
    others = [tokens(tmp_path / "c", "three", 0), tokens(tmp_path / "c", "four", 0)]
    cut = [tokens(tmp_path / "d", "one", 0, 30), tokens(tmp_path / "d", "two", 0, 10)]
    for paths in ([two, one], others, cut):
        assert "differs, in its files:" in refusal(graph, torchpipe.map.TokenFile(paths, 5).shuffle())


def test_files_of_tfrecords_count_by_name_and_size(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with open(tmp_path / f"{name}.tfrecord", "wb") as file:
            write_record(file, b"ab")
    one, two = (torchpipe.map.TFRecordFile(tmp_path / f"{name}.tfrecord", parse=False) for name in ("one", "two"))
    assert "differs, in its files:" in refusal(one.to_iter_datapipe(), two.to_iter_datapipe())


def test_a_list_of_paths_counts_by_names_below_their_folder() -> None:
    def listed(root: str, name: str = "x") -> str:
        return fingerprint(IterableWrapper([f"{root}/{kind}/{name}{n}.png" for kind in "ab" for n in range(999)]))

    assert listed("/data") == listed("/mnt/other") != listed("/data", "y")
    assert listed("s3://one") == listed("s3://two/deep") != listed("s3://one", "y")
    assert listed("relative") != listed("other")  # where a run stands when it begins is up to the user


def test_a_dataset_of_hugging_faces_counts_by_its_rows() -> None:
    def data(values: range, **options: Any) -> Any:
        return torchpipe.iter.HuggingFaceReader(datasets.Dataset.from_dict({"x": values}, **options))

    one, other = data(range(20)), data(range(100, 120))
    assert fingerprint(data(range(20))) == fingerprint(one) != fingerprint(other)
    assert "differs, in its dataset:" in refusal(one, other)
    shuffled = torchpipe.iter.HuggingFaceReader(one.dataset.shuffle(seed=1))
    assert fingerprint(shuffled) != fingerprint(one)
    renamed = torchpipe.iter.HuggingFaceReader(one.dataset.rename_column("x", "y"))
    assert fingerprint(renamed) != fingerprint(one)
    assert fingerprint(torchpipe.iter.HuggingFaceReader(one.dataset.with_format("numpy"))) != fingerprint(one)


class Reading:
    """Data of the user's, whose items nobody asks for before they are read."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        raise AssertionError("read")


def test_items_of_the_users_own_data_are_not_read() -> None:
    assert "iterable=Reading[5]" in describe_graph(IterableWrapper(Reading()))  # type: ignore[arg-type]
    assert "sequence=Reading[5]" in describe_graph(SequenceWrapper(Reading()).to_iter_datapipe())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
@pytest.mark.parametrize("place", [0, -1])
def test_the_first_and_the_last_item_are_in_every_sample(kind: Any, place: int) -> None:
    items = list(range(3_000_000))
    one = fingerprint(IterableWrapper(kind(items)))
    items[place] += 1
    assert fingerprint(IterableWrapper(kind(items))) != one


def test_an_argument_of_any_length_counts_whole() -> None:
    words = {f"word {number}": number for number in range(10_000)}
    assert fingerprint(numbers().map(words.get)) != fingerprint(numbers().map((words | {"word 5000": 0}).get))


def test_a_value_that_is_used_is_no_other_for_the_loader_that_uses_it() -> None:
    class Counter:
        calls = 0

        def add(self, item: int) -> int:
            self.calls += 1
            return item

    loader = DataLoader2(numbers().map(Counter().add))
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = list(iterator)
    loader.load_state_dict(state)
    assert list(loader) == rest == [1, 2, 0]
