"""Wrong arguments of the functional forms of iterable nodes, and of iterable nodes that have none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.wrong_arguments.right import needed, two
from tests.wrong_arguments.rows import Row
from torchpipe.iter import (
    SHARDING_PRIORITIES,
    FilePieces,
    HuggingFaceReader,
    IterableWrapper,
    SqlReader,
    TextLineReader,
)
from torchpipe.map import SequenceWrapper

__all__ = ["FORMS", "NODES"]


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


def lines() -> Any:
    return TextLineReader(__file__)


def begun() -> Any:
    return source().on_disk_cache(str)


def wrong(
    form: str, error: type[Exception], parameter: str, *given: Any, on: Callable[[], Any] = source, **options: Any
) -> Row:
    """The form, called with these arguments and with the right ones that it needs besides."""
    arguments = options if given else {**needed("iter", form), **options}

    def call() -> Any:
        return getattr(on(), form)(*given, **arguments)

    return f"{form}: {parameter}", call, error, parameter


def each(names: str, error: type[Exception], *values: Any) -> list[Row]:
    """Each of several parameters, written form.parameter, with each of these values."""
    pairs = [name.split(".") for name in names.split()]
    return [wrong(form, error, parameter, **{parameter: value}) for form, parameter in pairs for value in values]


AT_LEAST_MINUS_1 = """
    demux.buffer_size fork.buffer_size open_files.length set_length.length shuffle.unbatch_level unbatch.unbatch_level
"""
AT_LEAST_0 = """
    cache.max_bytes cycle.count list_files_by_fsspec.retries on_error.budget open_files_by_fsspec.retries
    random_split.total_length read_from_http.retries save_by_fsspec.retries skip.count take.count
    to_device.host_prefetch to_device.prefetch
"""
AT_LEAST_1 = """
    batch.batch_size cache.chunk_items demux.num_instances dynamic_batch.max_items fork.num_instances
    groupby.buffer_size groupby.group_size interleave.block_length interleave.cycle_length pack.length
    pad_batch.length pad_batch.multiple_of parallel_map.buffer_size parallel_map.num_threads prefetch.buffer_size
    read_arrow.batch_size read_parquet.batch_size rebatch.batch_size repeat.times retry.attempts shuffle.buffer_size
    sort.window to_device.device_prefetch_bytes to_device.transfer_threads window_shuffle.window
    zip_with_iter.buffer_size
"""
FUNCTIONS = """
    batch.wrapper_class bucket_by_length.length_fn collate.conversion demux.classifier_fn dynamic_batch.cost_fn
    filter.filter_fn flatmap.fn groupby.group_key_fn interleave.fn map.fn mix.by on_disk_cache.extra_check_fn
    on_disk_cache.filepath_fn parallel_map.fn random_map.fn save_by_fsspec.filepath_fn sort.key_fn
    to_map_datapipe.key_value_fn zip_with_iter.key_fn zip_with_iter.merge_fn zip_with_iter.ref_key_fn
    zip_with_map.key_fn zip_with_map.merge_fn
"""
CHOICES = """
    batch.last dynamic_batch.overflow fork.copy mix.by mix.stop on_disk_cache.hash_type on_error.policy
    open_files.mode pack.overflow pack.strategy pad_batch.side read_arrow.format read_csv.compression
    read_csv.encoding read_jsonl.compression read_jsonl.encoding read_lines.compression read_lines.encoding
    read_parquet.format read_tfrecord.compression read_webdataset.compression read_webdataset.images
    sharding_round_robin_dispatch.sharding_group_filter to_device.dtype to_device.on_new_shape to_device.sync
"""
SECONDS = """
    cache.lease_timeout_s retry.backoff_s retry.max_backoff_s
"""

OF_STORAGE = """
    list_row_groups read_arrow read_csv read_jsonl read_lines read_parquet read_tfrecord read_webdataset read_zip
"""

NUMBERS: list[Any] = [[1], [0, 0], [-1, 2], [float("nan"), 1], [float("inf"), 1]]
WEIGHTS = [*NUMBERS, {}, {5: [1, 1]}, {0: [1, 1], 5: [1]}, {-1: [1, 1]}]  # of two inputs
TIMEOUTS = "read_from_http.timeout"

FORMS: list[Row] = [
    *each(AT_LEAST_MINUS_1, ValueError, -2),
    *each(AT_LEAST_0, ValueError, -1),
    *each(AT_LEAST_1, ValueError, 0),
    *each(AT_LEAST_MINUS_1 + AT_LEAST_0 + AT_LEAST_1, TypeError, 1.5),
    *each(FUNCTIONS, TypeError, 3),
    *each(CHOICES, ValueError, "no such"),
    *each(SECONDS, ValueError, -1, float("inf")),
    *each(SECONDS, TypeError, "1"),
]

FORMS += [  # counts, lengths and weights
    *each("enumerate.starting_index", TypeError, 1.5, True, "a"),
    wrong("batch", ValueError, "drop_last", 2, drop_last=True, last="keep"),
    *each("prefetch.buffer_size take.count", TypeError, True, None),
    *each("bucket_by_length.boundaries", TypeError, 3, None, "no"),
    *each("bucket_by_length.boundaries", ValueError, [], [3, 3]),
    *each("bucket_by_length.batch_size", ValueError, [3], 0),
    *each("bucket_by_length.batch_size", TypeError, 1.5),
    *each("dynamic_batch.max_cost", ValueError, 0, float("nan")),
    *each("dynamic_batch.max_cost", TypeError, "9"),
    wrong("groupby", ValueError, "group_size", group_size=5, buffer_size=4),
    wrong("groupby", ValueError, "group_size", guaranteed_group_size=1),
    wrong("groupby", ValueError, "guaranteed_group_size", guaranteed_group_size=3, group_size=2),
    *each("pack.length", ValueError, {}, {"a": -1}, {"a": 8}),
    wrong("pack", ValueError, "bins", 8, bins=4),
    wrong("pack", ValueError, "bins", 8, strategy="best_fit", bins=0),
    wrong("pack", ValueError, "window", 8, strategy="best_fit", window=0),
    wrong("pack", ValueError, "window", 8, window=4),
    wrong("pack", ValueError, "max_sequences_per_bin", 8, strategy="best_fit", max_sequences_per_bin=0),
    wrong("pack", ValueError, "max_sequences_per_bin", 8, max_sequences_per_bin=4),
    wrong("pack", ValueError, "overflow", {"a": 8}, strategy="best_fit", overflow="split"),
    wrong("pack", ValueError, "keep", {"a": 8}, strategy="best_fit", keep=["a"]),
    *each("pad_batch.length", ValueError, []),
    wrong("pad_batch", ValueError, "multiple_of", length=3, multiple_of=2),
    *each("random_split.weights", ValueError, {"a": 0, "b": 0}, {"a": -1, "b": 2}, {}),
    *each("random_split.target", KeyError, "b"),
    *each("random_split.seed", TypeError, object()),
    wrong("random_split", TypeError, "total_length", {"a": 1}, 1, on=lambda: source().filter(bool)),
    *(wrong("mix", ValueError, "weights", source(), weights=weights) for weights in WEIGHTS),
    *(wrong("mix", TypeError, "weights", source(), weights=weights) for weights in (["a", 1], 3)),
    *each(TIMEOUTS, ValueError, 0),
    *each(TIMEOUTS, TypeError, "1"),
    *each("read_from_http.headerz", TypeError, {}),
    *(wrong(form, ValueError, "ahead_bytes", storage_options={"ahead_bytes": -1}) for form in OF_STORAGE.split()),
    *(wrong(form, ValueError, "cache_bytes", storage_options={"cache_dir": "x"}) for form in OF_STORAGE.split()),
    *each("cache.path", TypeError, 3),
    *each("cache.path", NotADirectoryError, __file__),
    *each("cache.path", ValueError, "s3://bucket/x"),
    wrong("cache", ValueError, "max_bytes", "x", max_bytes=3),
    wrong("end_caching", ValueError, "filepath_fn", on=begun, filepath_fn=str, same_filepath_fn=True),
    wrong("end_caching", TypeError, "filepath_fn", on=begun, filepath_fn=3),
    wrong("end_caching", ValueError, "mode", "r", on=begun),
    wrong("shard_pieces", ValueError, "piece_bytes", on=lines, piece_bytes=0),
    wrong("shard_pieces", TypeError, "piece_bytes", on=lines, piece_bytes="1MB"),
    wrong("shard_pieces", TypeError, "shuffle", on=lines, shuffle="yes"),
    wrong("shard_pieces", TypeError, "plan_file", on=lines, plan_file=3),
    wrong("shard_pieces", ValueError, "plan_file", on=lines, plan_file="s3://bucket/plan"),
    wrong("end_caching", ValueError, "timeout", on=begun, timeout=0),
]

FORMS += [  # functions, and the columns they are given
    *each("collate.collate_fn interleave.fn map.fn", ValueError, two),
    *each("interleave.fn parallel_map.fn", TypeError, Counting()),
    wrong("map", ValueError, "input_col", str.lower, [0, 1]),
    wrong("map", ValueError, "input_col", str, []),
    wrong("map", ValueError, "input_col", max, [0, 0]),
    wrong("map", ValueError, "output_col", max, [0, 0], [0, 1]),
    *each("pack.pad_value pad_batch.pad_value", TypeError, "0", None, [0], {"x": "0"}),
    wrong("map", ValueError, "output_col", str, None, 1),
    wrong("map", ValueError, "output_col", str, 0, [1, 2]),
    wrong("flatmap", ValueError, "input_col", str.lower, [0, 1]),
    *each("flatmap.input_col", ValueError, []),
    wrong("parallel_map", ValueError, "fn", lambda: 1),
    wrong("parallel_map", ValueError, "rng", lambda item: item, rng=True),
    wrong("random_map", ValueError, "rng", lambda item: item),
    *each("zip_with_iter.merge_fn zip_with_map.merge_fn", ValueError, lambda item: item),
    *each("zip_with_iter.ref_datapipe", TypeError, SequenceWrapper([1])),
    *each("zip_with_map.map_datapipe", TypeError, IterableWrapper([1])),
    *each("on_error.errors retry.errors", TypeError, 3, (), KeyboardInterrupt, "OSError"),
]

FORMS += [  # files and what is in them
    wrong("open_files", ValueError, "encoding", mode="b", encoding="utf-8"),
    *each("read_tfrecord.spec", TypeError, ["x"]),
    *each("read_csv.delimeter", TypeError, ";"),
    *each("read_lines.encoding read_jsonl.encoding read_csv.encoding", ValueError, "utf-16", "utf8x", "cp037"),
    *each("read_lines.encoding read_jsonl.encoding read_csv.encoding", TypeError, None),
    wrong("read_csv", ValueError, "header", ["a"], header=False),
    *each("read_csv.columns read_parquet.columns read_arrow.columns", ValueError, "id", []),
    *each("read_parquet.columns read_arrow.columns", ValueError, ["a", "a"]),
    *each("read_parquet.partitioning", ValueError, "dir"),
    *each("read_parquet.partitioning", TypeError, ["a"]),
    *each("read_parquet.format read_arrow.format", ValueError, "arrow"),
    *each("read_parquet.filter read_arrow.filter", ValueError, ["id", ">", 3]),
    *each("read_parquet.filter read_arrow.filter", TypeError, str),
    *each("read_webdataset.extensions", ValueError, "jpg", [], ["jpg;"], ["jpg", "png;jpg"]),
    wrong("read_webdataset", TypeError, "handler", handlers={"x": 1}),
    *each("read_zip.mask", TypeError, ["*.png"]),
    *each("list_files_by_fsspec.masks", TypeError, 3, ["*", 3]),
]

FORMS += [  # places
    *each("sharding_round_robin_dispatch.sharding_group_filter", ValueError, SHARDING_PRIORITIES.DISTRIBUTED),
    *each("to_device.device", ValueError, "tpu", "", "cpu:x", "meta", "mps"),
    *each("to_device.device", TypeError, 0, None, 1.5),
]


def of_hugging_face(batch_size: int) -> Any:
    import datasets  # here, since it is heavy

    return HuggingFaceReader(datasets.Dataset.from_dict({"a": [1]}), batch_size)


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
    ("FilePieces: unit", lambda: FilePieces(__file__, "words"), ValueError, "unit"),
    ("FilePieces: paths", lambda: FilePieces(3, "lines"), TypeError, "paths"),  # type: ignore[arg-type]
    ("FilePieces: compression", lambda: FilePieces(__file__, "lines", compression="zip"), ValueError, "compression"),
    ("set_seed: seed", lambda: source().shuffle().set_seed(-1), ValueError, "seed"),
    ("apply_sharding: instance_id", lambda: source().sharding_filter().apply_sharding(2, 2), ValueError, "instance_id"),
    ("apply_sharding: number", lambda: source().sharding_filter().apply_sharding(0, 0), ValueError, "num_of_instances"),
    *((f"SqlReader: {parameter}", partial(sql, **options), error, parameter) for error, parameter, options in SQL),
    (
        "HuggingFaceReader: batch_size",
        lambda: of_hugging_face(0),
        ValueError,
        "batch_size",
    ),
    ("HuggingFaceReader: dataset", lambda: HuggingFaceReader([1]), TypeError, "Dataset"),
    ("IterableWrapper: iterable", lambda: IterableWrapper(3), TypeError, "iterable"),  # type: ignore[arg-type]
    ("IterableWrapper: iterable", lambda: IterableWrapper(lambda: iter([1])), TypeError, "iterable"),  # type: ignore[arg-type]
    *(
        ("IterableWrapper: a set", partial(IterableWrapper, value), TypeError, "set")
        for value in ({1, 2}, frozenset("ab"))
    ),
]
