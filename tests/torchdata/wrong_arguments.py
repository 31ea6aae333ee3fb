"""Wrong arguments of torchdata's other nodes, of its adapters and of its functions on graphs: rows of
``tests/wrong_arguments``."""

from __future__ import annotations

from functools import partial

from tests.wrong_arguments.of_iter import Counting, each, source, wrong
from tests.wrong_arguments.right import later
from tests.wrong_arguments.rows import Row
from torchpipe.torchdata import FileLister, SampleMultiplexer
from torchpipe.torchdata.dataloader2.adapter import CacheTimeout, Shuffle
from torchpipe.torchdata.dataloader2.graph import replace_dp, traverse_dps
from torchpipe.torchdata.dataloader2.linter import _check_shuffle_before_sharding

__all__ = ["FORMS", "NOTHING_WRONG", "ROWS", "STREAMS"]

STREAMS = {"list_files_by_s3", "read_from_gdrive", "read_from_remote", "read_from_stream"}  # these take a node alone
NOTHING_WRONG = {
    "add_index": "any name of a column will do",
    "drop": "any key or place will do: whether an item has it is seen there",
    "flatten": "any key or place will do",
    "rows2columnar": "any names will do: how many there have to be is seen at a batch",
}

AT_LEAST_MINUS_1 = """
    list_files.length list_files_by_s3.length load_from_bz2.length load_from_rar.length load_from_tar.length
    load_from_tfrecord.length load_from_xz.length load_from_zip.length round_robin_demux.buffer_size unzip.buffer_size
"""
AT_LEAST_0 = """
    header.limit in_memory_cache.size max_token_bucketize.min_len parse_csv.skip_lines parse_csv_as_dict.skip_lines
    read_from_gdrive.retries read_from_remote.retries readlines.skip_lines
"""
AT_LEAST_1 = """
    async_map_batches.batch_size async_map_batches.max_concurrency bucketbatch.batch_num bucketbatch.batch_size
    bucketbatch.bucket_num dataframe.dataframe_size load_files_by_s3.buffer_size map_batches.batch_size
    max_token_bucketize.buffer_size max_token_bucketize.max_token_count read_from_stream.chunk
    round_robin_demux.num_instances shuffled_flatmap.buffer_size threadpool_map.max_workers
    threadpool_map.scheduled_tasks unzip.sequence_length
"""
FUNCTIONS = """
    bucketbatch.sort_key dataframe.dtype_generator lines_to_paragraphs.joiner map_batches.fn
    max_token_bucketize.len_fn pin_memory.pin_memory_fn save_by_iopath.filepath_fn save_to_disk.filepath_fn
    shuffled_flatmap.fn threadpool_map.fn
"""
CHOICES = """
    check_hash.hash_type decompress.file_type extract.file_type load_from_tar.mode save_to_disk.mode
"""
TIMEOUTS = "fullsync.timeout read_from_gdrive.timeout read_from_remote.timeout"

FORMS: list[Row] = [
    *each(AT_LEAST_MINUS_1, ValueError, -2),
    *each(AT_LEAST_0, ValueError, -1),
    *each(AT_LEAST_1, ValueError, 0),
    *each(AT_LEAST_MINUS_1 + AT_LEAST_0 + AT_LEAST_1, TypeError, 1.5),
    *each(FUNCTIONS, TypeError, 3),
    *each(CHOICES, ValueError, "no such"),
]

FORMS += [  # counts, lengths
    wrong("max_token_bucketize", ValueError, "max_len", 5, min_len=4, max_len=3),
    wrong("max_token_bucketize", ValueError, "max_len", 5, max_len=6),
    wrong("slice", ValueError, "stop", [0], 2),
    wrong("slice", ValueError, "step", 0, 2, 0),
    *each("unzip.columns_to_skip", ValueError, [0, 1], [2]),
    *each(TIMEOUTS, ValueError, 0),
    *each(TIMEOUTS, TypeError, "1"),
    *each("read_from_gdrive.headerz read_from_remote.headerz", TypeError, {}),
    *each("list_files_by_s3.request_timeout_ms load_files_by_s3.request_timeout_ms", ValueError, 0),
]

FORMS += [  # functions, and the columns they are given
    *each("shuffled_flatmap.fn", TypeError, Counting()),
    *each("shuffled_flatmap.input_col", ValueError, []),
    wrong("threadpool_map", TypeError, "thread_name_prefix", str, thread_name_prefix="x"),
    *each("async_map_batches.async_fn", ValueError, list, 3),
    wrong("async_map_batches", ValueError, "output_col", later, 1, None, 2),
    wrong("async_map_batches", ValueError, "input_col", later, 1, [0, 1]),
    wrong("routed_decode", TypeError, "handler", 3),
]

FORMS += [  # files and what is in them
    wrong("load_from_tfrecord", ValueError, "spec", {"rows": ((-1, -1), None)}),
    *each("decompress.file_type extract.file_type", ValueError, 3),
    *each("parse_csv.encoding parse_csv_as_dict.encoding readlines.encoding", LookupError, "no such", None),
    *each("parse_csv.errors parse_csv_as_dict.errors readlines.errors", LookupError, "no such"),
    *each("parse_csv.delimit parse_csv_as_dict.delimit", TypeError, ";"),
    *each("parse_csv.delimiter parse_csv_as_dict.delimiter", TypeError, "--"),
    wrong("parse_json_files", TypeError, "parse_intt", parse_intt=str),
    *each("dataframe.device load_parquet_as_df.device", ValueError, "cuda"),
    *each("list_files.masks list_files_by_s3.masks", TypeError, 3, ["*", 3]),
    *each("list_files_by_iopath.pathmgr open_files_by_iopath.pathmgr save_by_iopath.pathmgr", TypeError, 3),
    *each("list_files_by_iopath.handler open_files_by_iopath.handler save_by_iopath.handler", TypeError, 3),
]

NODES: list[Row] = [
    ("CacheTimeout: timeout", lambda: CacheTimeout(), ValueError, "timeout"),
    ("CacheTimeout: datapipe", lambda: CacheTimeout(3)([]), TypeError, "datapipe"),
    ("Shuffle: enable", lambda: Shuffle("yes"), TypeError, "enable"),  # type: ignore[arg-type]
    ("Shuffle: datapipe", lambda: Shuffle()([1]), TypeError, "datapipe"),
    (
        "check_shuffle_before_sharding",
        lambda: _check_shuffle_before_sharding([1]),  # type: ignore[arg-type]
        TypeError,
        "IterDataPipe",
    ),
    ("traverse_dps", lambda: traverse_dps([1]), TypeError, "datapipe"),  # type: ignore[arg-type]
    (
        "replace_dp: another graph's",
        lambda: replace_dp(traverse_dps(source()), source(), source()),
        ValueError,
        "graph",
    ),
    ("FileLister: root", lambda: FileLister(3), TypeError, "folders"),  # type: ignore[arg-type]
    ("FileLister: root", lambda: FileLister("s3://bucket"), ValueError, "folders"),
    *(
        ("SampleMultiplexer: weight", partial(SampleMultiplexer, {source(): weight}), ValueError, "weight")  # type: ignore[dict-item]
        for weight in (0, -1, float("nan"), float("inf"), "1")
    ),
    ("SampleMultiplexer: none", lambda: SampleMultiplexer({}), ValueError, "datapipe"),
    ("SampleMultiplexer: input", lambda: SampleMultiplexer({"a": 1}), TypeError, "input"),  # type: ignore[dict-item]
]

ROWS = [*FORMS, *NODES]
