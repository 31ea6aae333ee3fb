"""Wrong arguments of the functional forms of iterable nodes, and of iterable nodes that have none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import datasets

from tests.wrong_arguments.rows import Row
from torchpipe.graph.adapters import CacheTimeout
from torchpipe.iter import (
    SHARDING_PRIORITIES,
    FileLister,
    HuggingFaceReader,
    IterableWrapper,
    SampleMultiplexer,
    SqlReader,
)
from torchpipe.map import SequenceWrapper

__all__ = ["FORMS", "NEEDED", "NODES"]


async def later(items: Any) -> Any:
    return items


def two(first: Any, second: Any) -> Any:
    return first, second


class Counting:
    """A function with a state of its own."""

    def __call__(self, item: Any) -> Any:
        return item

    def state_dict(self) -> Any:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


def source() -> Any:
    return IterableWrapper([1])


def begun() -> Any:
    return source().on_disk_cache(str)


NEEDED: dict[str, dict[str, Any]] = {
    "async_map_batches": {"async_fn": later, "batch_size": 1},
    "batch": {"batch_size": 1},
    "bucket_by_length": {"boundaries": [3], "batch_size": 1},
    "bucketbatch": {"batch_size": 1},
    "check_hash": {"hash_dict": {}},
    "demux": {"num_instances": 2, "classifier_fn": int},
    "drop": {"indices": 0},
    "dynamic_batch": {"max_cost": 3},
    "filter": {"filter_fn": bool},
    "fork": {"num_instances": 2},
    "groupby": {"group_key_fn": str},
    "map": {"fn": str},
    "map_batches": {"fn": list, "batch_size": 1},
    "max_token_bucketize": {"max_token_count": 5},
    "mix": {"weights": [1]},
    "on_error": {"policy": "skip"},
    "pack": {"length": 8},
    "parallel_map": {"fn": str},
    "random_map": {"fn": two},
    "random_split": {"weights": {"a": 1}, "seed": 1},
    "rebatch": {"batch_size": 1},
    "repeat": {"times": 2},
    "round_robin_demux": {"num_instances": 2},
    "set_length": {"length": 2},
    "skip": {"count": 1},
    "slice": {"index": 0},
    "sort": {"window": 2},
    "take": {"count": 1},
    "threadpool_map": {"fn": str},
    "to_device": {"device": "cpu"},
    "unzip": {"sequence_length": 2},
    "window_shuffle": {"window": 2},
    "zip_with_iter": {"ref_datapipe": IterableWrapper([1]), "key_fn": str},
    "zip_with_map": {"map_datapipe": SequenceWrapper([1]), "key_fn": str},
}  # without which a form cannot be called


def wrong(
    form: str, error: type[Exception], parameter: str, *given: Any, on: Callable[[], Any] = source, **options: Any
) -> Row:
    """The form, called with these arguments and with the right ones that it needs besides."""
    arguments = options if given else {**NEEDED.get(form, {}), **options}

    def call() -> Any:
        return getattr(on(), form)(*given, **arguments)

    return f"{form}: {parameter}", call, error, parameter


LEAST = {
    0: (
        "cache: max_bytes",
        "cycle: count",
        "header: limit",
        "in_memory_cache: size",
        "list_files_by_fsspec: retries",
        "max_token_bucketize: min_len",
        "on_error: budget",
        "open_files_by_fsspec: retries",
        "parse_csv: skip_lines",
        "parse_csv_as_dict: skip_lines",
        "random_split: total_length",
        "read_from_gdrive: retries",
        "read_from_http: retries",
        "read_from_remote: retries",
        "readlines: skip_lines",
        "save_by_fsspec: retries",
        "skip: count",
        "take: count",
        "to_device: host_prefetch",
        "to_device: prefetch",
    ),
    1: (
        "async_map_batches: batch_size",
        "async_map_batches: max_concurrency",
        "batch: batch_size",
        "bucketbatch: batch_num",
        "bucketbatch: batch_size",
        "bucketbatch: bucket_num",
        "cache: chunk_items",
        "dataframe: dataframe_size",
        "demux: num_instances",
        "dynamic_batch: max_items",
        "fork: num_instances",
        "groupby: buffer_size",
        "groupby: group_size",
        "interleave: block_length",
        "interleave: cycle_length",
        "load_files_by_s3: buffer_size",
        "map_batches: batch_size",
        "max_token_bucketize: buffer_size",
        "max_token_bucketize: max_token_count",
        "pack: length",
        "pad_batch: length",
        "pad_batch: multiple_of",
        "parallel_map: buffer_size",
        "parallel_map: num_threads",
        "prefetch: buffer_size",
        "read_arrow: batch_size",
        "read_from_stream: chunk",
        "read_parquet: batch_size",
        "rebatch: batch_size",
        "repeat: times",
        "retry: attempts",
        "round_robin_demux: num_instances",
        "shuffle: buffer_size",
        "shuffled_flatmap: buffer_size",
        "sort: window",
        "threadpool_map: max_workers",
        "threadpool_map: scheduled_tasks",
        "to_device: device_prefetch_bytes",
        "to_device: transfer_threads",
        "unzip: sequence_length",
        "window_shuffle: window",
        "zip_with_iter: buffer_size",
    ),
    -1: (
        "demux: buffer_size",
        "fork: buffer_size",
        "list_files: length",
        "list_files_by_s3: length",
        "load_from_bz2: length",
        "load_from_rar: length",
        "load_from_tar: length",
        "load_from_tfrecord: length",
        "load_from_xz: length",
        "load_from_zip: length",
        "open_files: length",
        "round_robin_demux: buffer_size",
        "set_length: length",
        "shuffle: unbatch_level",
        "unbatch: unbatch_level",
        "unzip: buffer_size",
    ),
}
FUNCTIONS = (
    "batch: wrapper_class",
    "bucket_by_length: length_fn",
    "bucketbatch: sort_key",
    "collate: conversion",
    "dataframe: dtype_generator",
    "demux: classifier_fn",
    "dynamic_batch: cost_fn",
    "filter: filter_fn",
    "flatmap: fn",
    "groupby: group_key_fn",
    "interleave: fn",
    "lines_to_paragraphs: joiner",
    "map: fn",
    "map_batches: fn",
    "max_token_bucketize: len_fn",
    "mix: by",
    "on_disk_cache: extra_check_fn",
    "on_disk_cache: filepath_fn",
    "parallel_map: fn",
    "pin_memory: pin_memory_fn",
    "random_map: fn",
    "save_by_fsspec: filepath_fn",
    "save_by_iopath: filepath_fn",
    "save_to_disk: filepath_fn",
    "shuffled_flatmap: fn",
    "sort: key_fn",
    "threadpool_map: fn",
    "to_map_datapipe: key_value_fn",
    "zip_with_iter: key_fn",
    "zip_with_iter: merge_fn",
    "zip_with_iter: ref_key_fn",
    "zip_with_map: key_fn",
    "zip_with_map: merge_fn",
)
CHOICES = (
    "batch: last",
    "check_hash: hash_type",
    "decompress: file_type",
    "dynamic_batch: overflow",
    "extract: file_type",
    "fork: copy",
    "load_from_tar: mode",
    "mix: by",
    "mix: stop",
    "on_disk_cache: hash_type",
    "on_error: policy",
    "open_files: mode",
    "pack: overflow",
    "pack: strategy",
    "pad_batch: side",
    "read_arrow: format",
    "read_csv: compression",
    "read_csv: encoding",
    "read_jsonl: compression",
    "read_jsonl: encoding",
    "read_lines: compression",
    "read_lines: encoding",
    "read_parquet: format",
    "read_tfrecord: compression",
    "read_webdataset: compression",
    "read_webdataset: images",
    "save_to_disk: mode",
    "sharding_round_robin_dispatch: sharding_group_filter",
    "to_device: dtype",
    "to_device: on_new_shape",
    "to_device: sync",
)
SECONDS = ("cache: lease_timeout_s", "retry: backoff_s", "retry: max_backoff_s")
FREE_OF = {"parse_csv", "parse_csv_as_dict", "readlines"}  # they look encodings up by themselves


def of_each(names: tuple[str, ...], error: type[Exception], value: Any) -> list[Row]:
    pairs = [name.split(": ") for name in names]
    return [wrong(form, error, parameter, **{parameter: value}) for form, parameter in pairs]


FORMS: list[Row] = [
    *(row for least, names in LEAST.items() for row in of_each(names, ValueError, least - 1)),
    *(row for names in LEAST.values() for row in of_each(names, TypeError, 1.5)),
    *of_each(FUNCTIONS, TypeError, 3),
    *of_each(CHOICES, ValueError, "no such"),
    *of_each(SECONDS, ValueError, -1),
    *of_each(SECONDS, ValueError, float("inf")),
    *of_each(SECONDS, TypeError, "1"),
]

FORMS += [  # counts, lengths and weights
    *(wrong("enumerate", TypeError, "starting_index", value) for value in (1.5, True, "a")),
    wrong("batch", ValueError, "batch_size", batch_size=-1),
    wrong("batch", ValueError, "drop_last", 2, drop_last=True, last="keep"),
    wrong("prefetch", TypeError, "buffer_size", True),
    wrong("take", TypeError, "count", None),
    *(wrong("bucket_by_length", TypeError, "boundaries", value, 3) for value in (3, None, "no")),
    wrong("bucket_by_length", TypeError, "batch_size", [3], 1.5),
    wrong("bucket_by_length", ValueError, "boundaries", [], 3),
    wrong("bucket_by_length", ValueError, "boundaries", [3, 3], 3),
    wrong("bucket_by_length", ValueError, "batch_size", [3], [3]),
    wrong("bucket_by_length", ValueError, "batch_size", [3], 0),
    wrong("dynamic_batch", ValueError, "max_cost", 0),
    wrong("dynamic_batch", TypeError, "max_cost", "9"),
    wrong("dynamic_batch", ValueError, "max_cost", float("nan")),
    wrong("max_token_bucketize", ValueError, "max_len", 5, min_len=4, max_len=3),
    wrong("max_token_bucketize", ValueError, "max_len", 5, max_len=6),
    wrong("groupby", ValueError, "group_size", group_size=5, buffer_size=4),
    wrong("groupby", ValueError, "group_size", guaranteed_group_size=1),
    wrong("groupby", ValueError, "guaranteed_group_size", guaranteed_group_size=3, group_size=2),
    wrong("pack", ValueError, "length", {}),
    wrong("pack", ValueError, "length", {"a": -1}),
    wrong("pack", ValueError, "bins", 8, bins=4),
    wrong("pack", ValueError, "bins", 8, strategy="best_fit", bins=0),
    wrong("pack", ValueError, "max_sequences_per_bin", 8, strategy="best_fit", max_sequences_per_bin=0),
    wrong("pack", ValueError, "max_sequences_per_bin", 8, max_sequences_per_bin=4),
    wrong("pack", ValueError, "length", {"a": 8}),
    wrong("pack", ValueError, "overflow", {"a": 8}, strategy="best_fit", overflow="split"),
    wrong("pack", ValueError, "keep", {"a": 8}, strategy="best_fit", keep=["a"]),
    wrong("pad_batch", ValueError, "length", length=[]),
    wrong("pad_batch", ValueError, "multiple_of", length=3, multiple_of=2),
    wrong("slice", ValueError, "stop", [0], 2),
    wrong("slice", ValueError, "step", 0, 2, 0),
    wrong("unzip", ValueError, "columns_to_skip", columns_to_skip=[0, 1]),
    wrong("unzip", ValueError, "columns_to_skip", columns_to_skip=[2]),
    wrong("random_split", ValueError, "weights", {"a": 0, "b": 0}, 1),
    wrong("random_split", ValueError, "weights", {"a": -1, "b": 2}, 1),
    wrong("random_split", ValueError, "weights", {}, 1),
    wrong("random_split", KeyError, "target", {"a": 1}, 1, target="b"),
    wrong("random_split", TypeError, "seed", {"a": 1}, object()),
    wrong("random_split", TypeError, "total_length", {"a": 1}, 1, on=lambda: source().filter(bool)),
    *(
        wrong("mix", error, "weights", source(), weights=weights)
        for error, weights in [
            (ValueError, [1]),
            (ValueError, [0, 0]),
            (ValueError, [-1, 2]),
            (ValueError, [float("nan"), 1]),
            (ValueError, [float("inf"), 1]),
            (TypeError, ["a", 1]),
            (TypeError, 3),
            (ValueError, {}),
            (ValueError, {5: [1, 1]}),
            (ValueError, {0: [1, 1], 5: [1]}),
            (ValueError, {-1: [1, 1]}),
        ]
    ),
    wrong("fullsync", ValueError, "timeout", 0),
    wrong("fullsync", TypeError, "timeout", "1"),
    *(wrong(f"read_from_{of}", ValueError, "timeout", timeout=0) for of in ("gdrive", "http", "remote")),
    *(wrong(f"read_from_{of}", TypeError, "timeout", timeout="1") for of in ("gdrive", "http", "remote")),
    *(wrong(f"read_from_{of}", TypeError, "headerz", headerz={}) for of in ("gdrive", "http", "remote")),
    *(
        wrong(f"{form}_files_by_s3", ValueError, "request_timeout_ms", request_timeout_ms=0)
        for form in ("list", "load")
    ),
    wrong("cache", TypeError, "path", 3),
    wrong("cache", NotADirectoryError, "path", __file__),
    wrong("cache", ValueError, "path", "s3://bucket/x"),
    wrong("cache", ValueError, "max_bytes", "x", max_bytes=3),
    wrong("end_caching", ValueError, "filepath_fn", on=begun, filepath_fn=str, same_filepath_fn=True),
    wrong("end_caching", TypeError, "filepath_fn", on=begun, filepath_fn=3),
    wrong("end_caching", ValueError, "mode", "r", on=begun),
    wrong("end_caching", ValueError, "timeout", on=begun, timeout=0),
]

FORMS += [  # functions, and the columns they are given
    wrong("collate", TypeError, "conversion", {}),
    wrong("collate", ValueError, "collate_fn", collate_fn=two),
    wrong("filter", TypeError, "filter_fn", None),
    wrong("map", ValueError, "fn", two),
    wrong("map", ValueError, "input_col", str.lower, [0, 1]),
    wrong("map", ValueError, "input_col", str, []),
    wrong("map", ValueError, "output_col", str, None, 1),
    wrong("map", ValueError, "output_col", str, 0, [1, 2]),
    wrong("flatmap", ValueError, "input_col", str.lower, [0, 1]),
    wrong("flatmap", ValueError, "input_col", input_col=[]),
    wrong("interleave", ValueError, "fn", two),
    wrong("interleave", TypeError, "fn", Counting()),
    wrong("parallel_map", ValueError, "fn", lambda: 1),
    wrong("parallel_map", ValueError, "rng", lambda item: item, rng=True),
    wrong("parallel_map", TypeError, "fn", Counting()),
    wrong("threadpool_map", TypeError, "thread_name_prefix", str, thread_name_prefix="x"),
    wrong("random_map", ValueError, "rng", lambda item: item),
    wrong("random_map", TypeError, "fn", "x"),
    *(wrong("async_map_batches", ValueError, "async_fn", value, 1) for value in (list, 3)),
    wrong("async_map_batches", ValueError, "output_col", later, 1, None, 2),
    wrong("async_map_batches", ValueError, "input_col", later, 1, [0, 1]),
    wrong("zip_with_iter", ValueError, "merge_fn", merge_fn=lambda item: item),
    wrong("zip_with_iter", TypeError, "ref_datapipe", SequenceWrapper([1]), str),
    wrong("zip_with_map", TypeError, "map_datapipe", IterableWrapper([1]), str),
    wrong("routed_decode", TypeError, "handler", 3),
    wrong("on_error", TypeError, "errors", "skip", errors=3),
    wrong("on_error", TypeError, "errors", "skip", errors=()),
    wrong("on_error", TypeError, "errors", "skip", errors=KeyboardInterrupt),
    wrong("retry", TypeError, "errors", errors="OSError"),
]

FORMS += [  # files and what is in them
    wrong("open_files", ValueError, "encoding", mode="b", encoding="utf-8"),
    wrong("load_from_tfrecord", ValueError, "spec", {"rows": ((-1, -1), None)}),
    wrong("read_tfrecord", TypeError, "spec", ["x"]),
    *(wrong(form, ValueError, "file_type", 3) for form in ("decompress", "extract")),
    *(wrong(form, LookupError, "encoding", decode=True, encoding="no such") for form in sorted(FREE_OF)),
    *(wrong(form, LookupError, "errors", decode=True, errors="no such") for form in sorted(FREE_OF)),
    *(wrong(form, TypeError, "delimit", delimit=";") for form in ("parse_csv", "parse_csv_as_dict")),
    *(wrong(form, TypeError, "delimiter", delimiter="--") for form in ("parse_csv", "parse_csv_as_dict")),
    wrong("parse_json_files", TypeError, "parse_intt", parse_intt=str),
    *(
        wrong(form, ValueError, "encoding", encoding=name)
        for form in ("read_lines", "read_jsonl")
        for name in ("utf-16", "utf8x", "cp037")
    ),
    *(wrong(form, TypeError, "encoding", encoding=None) for form in ("read_lines", "read_jsonl")),
    wrong("read_csv", ValueError, "header", ["a"], header=False),
    wrong("read_csv", TypeError, "delimeter", delimeter=";"),
    wrong("read_csv", ValueError, "encoding", encoding="utf-32"),
    *(
        wrong(form, ValueError, "columns", columns=value)
        for form in ("read_csv", "read_parquet", "read_arrow")
        for value in ("id", [])
    ),
    *(wrong(form, ValueError, "columns", columns=["a", "a"]) for form in ("read_parquet", "read_arrow")),
    *(wrong(form, ValueError, "format", format="torch") for form in ("read_parquet", "read_arrow")),
    *(wrong(form, ValueError, "filter", filter=["id", ">", 3]) for form in ("read_parquet", "read_arrow")),
    *(wrong(form, TypeError, "filter", filter=str) for form in ("read_parquet", "read_arrow")),
    *(wrong("read_webdataset", ValueError, "extensions", value) for value in ("jpg", [], ["jpg;"], ["jpg", "png;jpg"])),
    wrong("read_webdataset", TypeError, "handler", handlers={"x": 1}),
    wrong("read_zip", TypeError, "mask", mask=["*.png"]),
    *(wrong(form, ValueError, "device", device="cuda") for form in ("dataframe", "load_parquet_as_df")),
    wrong("save_to_disk", ValueError, "mode", "a"),
    wrong("list_files", TypeError, "masks", masks=3),
    wrong("list_files", TypeError, "masks", masks=["*", 3]),
    *(wrong(f"list_files_by_{of}", TypeError, "masks", masks=3) for of in ("fsspec", "iopath", "s3")),
    *(
        wrong(f"{form}_by_iopath", TypeError, option, **{option: 3})
        for form in ("list_files", "open_files", "save")
        for option in ("pathmgr", "handler")
    ),
]

FORMS += [  # places
    wrong("sharding_round_robin_dispatch", ValueError, "sharding_group_filter", SHARDING_PRIORITIES.DISTRIBUTED),
    *(wrong("to_device", ValueError, "device", name) for name in ("tpu", "", "cpu:x", "meta", "mps")),
    *(wrong("to_device", TypeError, "device", value) for value in (0, None, 1.5)),
]


def sql(**options: Any) -> Any:
    return SqlReader(**{"connect": lambda: None, "table": "a", "key": "id", **options})


SQL: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (TypeError, "connect", {"connect": "a.db"}),
    (ValueError, "query", {"table": None}),
    (ValueError, "query", {"query": "b"}),
    (ValueError, "table", {"table": "a; DROP TABLE b"}),
    (ValueError, "key", {"key": "b c"}),
    (ValueError, "key", {"key": []}),
    (ValueError, "columns", {"columns": "x"}),
    (TypeError, "columns", {"columns": [1]}),
    (ValueError, "page_size", {"page_size": 0}),
    (ValueError, "paramstyle", {"paramstyle": "?"}),
]

NODES: list[Row] = [
    ("set_seed: seed", lambda: source().shuffle().set_seed(-1), ValueError, "seed"),
    ("apply_sharding: instance_id", lambda: source().sharding_filter().apply_sharding(2, 2), ValueError, "instance_id"),
    ("apply_sharding: number", lambda: source().sharding_filter().apply_sharding(0, 0), ValueError, "num_of_instances"),
    ("CacheTimeout: timeout", lambda: CacheTimeout(), ValueError, "timeout"),
    ("CacheTimeout: datapipe", lambda: CacheTimeout(3)([]), TypeError, "datapipe"),
    *((f"SqlReader: {parameter}", partial(sql, **options), error, parameter) for error, parameter, options in SQL),
    (
        "HuggingFaceReader: batch_size",
        lambda: HuggingFaceReader(datasets.Dataset.from_dict({"a": [1]}), 0),
        ValueError,
        "batch_size",
    ),
    ("HuggingFaceReader: dataset", lambda: HuggingFaceReader([1]), TypeError, "Dataset"),
    ("IterableWrapper: iterable", lambda: IterableWrapper(3), TypeError, "iterable"),
    ("IterableWrapper: iterable", lambda: IterableWrapper(lambda: iter([1])), TypeError, "iterable"),
    ("FileLister: root", lambda: FileLister(3), TypeError, "folders"),
    *(
        ("IterableWrapper: a set", partial(IterableWrapper, value), TypeError, "set")
        for value in ({1, 2}, frozenset("ab"))
    ),
    ("FileLister: root", lambda: FileLister("s3://bucket"), ValueError, "folders"),
    *(
        ("SampleMultiplexer: weight", partial(SampleMultiplexer, {source(): weight}), ValueError, "weight")
        for weight in (0, -1, float("nan"), float("inf"), "1")
    ),
    ("SampleMultiplexer: none", lambda: SampleMultiplexer({}), ValueError, "datapipe"),
    ("SampleMultiplexer: input", lambda: SampleMultiplexer({"a": 1}), TypeError, "input"),  # type: ignore[dict-item]
]
