"""Every functional form, typed. Written by ``make stubs`` from the nodes: do not edit."""

import os
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, Unpack, overload

import numpy as np
import torch

from torchpipe.compat.torch_datapipes import SHARDING_PRIORITIES
from torchpipe.device import Backend, DeviceKeywords
from torchpipe.formats.pieces.plan import Piece
from torchpipe.formats.storage.streams import StreamWrapper
from torchpipe.iter.grouping import Last
from torchpipe.iter.mixing import Stop, Weights
from torchpipe.iter.packing import Overflow, Strategy
from torchpipe.node.datapipe import IterDataPipe, MapDataPipe

__all__ = ["IterMethods", "MapMethods"]

T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")
T = TypeVar("T")

class IterMethods(Generic[T_co]):
    """The functional forms of iterable nodes."""

    def add_index(self: IterMethods[dict[Any, Any]], index_name: str = "index") -> IterDataPipe[dict[Any, Any]]:
        """Adds to a copy of each dict its number in the stream, from 0 on, under the key ``index_name``."""

    def async_map_batches(
        self,
        async_fn: Callable[..., Awaitable[R]],
        batch_size: int,
        input_col: Any = None,
        output_col: Any = None,
        max_concurrency: int = 32,
        flatten: bool = True,
    ) -> IterDataPipe[R]:
        """Awaits ``async_fn`` of all items of a batch at once, at most ``max_concurrency`` at a time, in order."""

    def batch(
        self,
        batch_size: int,
        drop_last: bool = False,
        wrapper_class: Callable[[list[Any]], Any] = ...,
        *,
        last: Last | None = None,
    ) -> IterDataPipe[list[T_co]]:
        """Gathers ``batch_size`` consecutive items into a list; a shorter last one is left out with ``drop_last``."""

    def bucket_by_length(
        self,
        boundaries: Sequence[int],
        batch_size: int | Sequence[int],
        length_fn: Callable[[T_co], int] = ...,
        drop_last: bool = False,
    ) -> IterDataPipe[list[T_co]]:
        """Gathers items into buckets by their length, and hands out a bucket as a batch when it is full."""

    def bucketbatch(
        self,
        batch_size: int,
        drop_last: bool = False,
        batch_num: int = 100,
        bucket_num: int = 1,
        sort_key: Callable[[list[Any]], Any] | None = None,
        use_in_batch_shuffle: bool = True,
    ) -> IterDataPipe[list[T_co]]:
        """Batches of items that ``sort_key`` puts next to each other: a chain of ``shuffle``, ``map`` and ``batch``."""

    def cache(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        max_bytes: int | None = None,
        version: str | int = "",
        chunk_items: int = 32,
        allow_pickle: bool = False,
        lease_timeout_s: float = 60.0,
    ) -> IterDataPipe[T_co]:
        """Makes its input once, and hands the same items out in every epoch: from memory, or from the folder
        ``path``.
        """

    def check_hash(
        self: IterMethods[tuple[str, Any]], hash_dict: Mapping[str, str], hash_type: str = "sha256", rewind: bool = True
    ) -> IterDataPipe[tuple[str, Any]]:
        """Hands on pairs (path, content) whose content has the hash that ``hash_dict`` has for the path, in
        hexadecimal.
        """

    @overload
    def collate(self) -> IterDataPipe[Any]:
        """Applies ``collate_fn``, or else ``conversion``, to every item, usually a list from ``batch``."""

    @overload
    def collate(self, conversion: Callable[[T_co], R]) -> IterDataPipe[R]:
        """Applies ``collate_fn``, or else ``conversion``, to every item, usually a list from ``batch``."""

    @overload
    def collate(self, conversion: Callable[..., Any] = ..., *, collate_fn: Callable[[T_co], R]) -> IterDataPipe[R]:
        """Applies ``collate_fn``, or else ``conversion``, to every item, usually a list from ``batch``."""

    def concat(self, *datapipes: IterDataPipe[T_co]) -> IterDataPipe[T_co]:
        """All items of the first input, then all of the second one, and so on."""

    def cycle(self, count: int | None = None) -> IterDataPipe[T_co]:
        """Reads its input ``count`` times in a row, or for ever if ``count`` is None."""

    def dataframe(
        self,
        dataframe_size: int = 1000,
        dtype: Any = None,
        dtype_generator: Callable[[], Any] | None = None,
        columns: Sequence[str] | None = None,
        device: str = "",
    ) -> IterDataPipe[Any]:
        """Gathers ``dataframe_size`` consecutive rows into a ``pyarrow.Table``; the last one may be shorter."""

    def decompress(
        self: IterMethods[tuple[str, Any]], file_type: str | Any | None = None
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Takes pairs (path, binary stream), and yields pairs (path, decompressed stream)."""

    def demux(
        self,
        num_instances: int,
        classifier_fn: Callable[[T_co], int | None],
        drop_none: bool = False,
        buffer_size: int = 1000,
    ) -> list[IterDataPipe[T_co]]:
        """``num_instances`` branches, to which ``classifier_fn`` deals the items of the input: it returns a branch's
        number.
        """

    def drop(self, indices: Hashable | list[Hashable]) -> IterDataPipe[Any]:
        """Leaves out the parts ``indices`` of each item: indices of tuples and lists, keys of dicts; one or several."""

    def dynamic_batch(
        self,
        max_cost: float,
        cost_fn: Callable[[T_co], float] = ...,
        *,
        padded: bool = False,
        max_items: int | None = None,
        overflow: Literal["raise", "drop", "keep"] = "raise",
    ) -> IterDataPipe[list[T_co]]:
        """Gathers consecutive items into a list as long as they cost no more than ``max_cost`` together."""

    def end_caching(
        self,
        mode: str = "wb",
        filepath_fn: Callable[[Any], str] | None = None,
        *,
        same_filepath_fn: bool = False,
        skip_read: bool = False,
        timeout: float = 300,
    ) -> IterDataPipe[str]:
        """Ends the part that ``on_disk_cache`` began, and yields the paths of the files, in the order of its input."""

    def enumerate(self, starting_index: int = 0) -> IterDataPipe[tuple[int, T_co]]:
        """Pairs ``(number, item)``, numbered from ``starting_index``."""

    def extract(
        self: IterMethods[tuple[str, Any]], file_type: str | Any | None = None
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """The former name of ``decompress``, whose node it makes."""

    @overload
    def filter(self, filter_fn: Callable[[T_co], Any]) -> IterDataPipe[T_co]:
        """Hands on the items for which ``filter_fn`` returns True, in order; open streams in the others are closed."""

    @overload
    def filter(self, filter_fn: Callable[..., Any], input_col: Any) -> IterDataPipe[T_co]:
        """Hands on the items for which ``filter_fn`` returns True, in order; open streams in the others are closed."""

    @overload
    def flatmap(self: IterMethods[Iterable[R]]) -> IterDataPipe[R]:
        """Applies ``fn`` to every item and hands out the items of its results, one after the other."""

    @overload
    def flatmap(self, *, input_col: Any) -> IterDataPipe[Any]:
        """Applies ``fn`` to every item and hands out the items of its results, one after the other."""

    @overload
    def flatmap(self, fn: Callable[[T_co], Iterable[R]]) -> IterDataPipe[R]:
        """Applies ``fn`` to every item and hands out the items of its results, one after the other."""

    @overload
    def flatmap(self, fn: Callable[..., Iterable[R]], input_col: Any) -> IterDataPipe[R]:
        """Applies ``fn`` to every item and hands out the items of its results, one after the other."""

    def flatten(self, indices: Hashable | list[Hashable] | None = None) -> IterDataPipe[Any]:
        """Puts what stands in the parts ``indices`` of each item in their place: lists and tuples into lists and
        tuples, dicts into dicts.
        """

    def fork(
        self, num_instances: int, buffer_size: int = 1000, copy: Literal["shallow", "deep", "same"] | None = None
    ) -> list[IterDataPipe[T_co]]:
        """``num_instances`` branches that all yield the items of the input, which is read once for all of them."""

    def fullsync(self, timeout: float = 1800) -> IterDataPipe[T_co]:
        """Hands its input on while every rank has an item: all end when the first has no more."""

    def groupby(
        self,
        group_key_fn: Callable[[T_co], Hashable],
        *,
        keep_key: bool = False,
        buffer_size: int = 10000,
        group_size: int | None = None,
        guaranteed_group_size: int | None = None,
        drop_remaining: bool = False,
    ) -> IterDataPipe[Any]:
        """Gathers the items that have one key, as ``group_key_fn`` tells it, into lists; with ``keep_key`` into
        pairs (key, list).
        """

    def header(self, limit: int | None = 10) -> IterDataPipe[T_co]:
        """``take`` under torchdata's name: the first ``limit`` items (None: all of them)."""

    def in_batch_shuffle(self: IterMethods[Sequence[T]]) -> IterDataPipe[list[T]]:
        """Hands on each batch with its items in random order, as a ``DataChunk``; every order has the same chance."""

    def in_memory_cache(self, size: int | None = None) -> IterDataPipe[T_co]:
        """``cache`` in memory, of at most ``size`` megabytes (None: any number): its input is made once, and the
        same items come in every epoch.
        """

    @overload
    def interleave(self, *, cycle_length: int = ..., block_length: int = ...) -> IterDataPipe[Any]:
        """Opens ``cycle_length`` items of its input at once with ``fn``, and takes ``block_length`` items of each in
        turn.
        """

    @overload
    def interleave(
        self, fn: Callable[[T_co], Iterable[R]], cycle_length: int = ..., block_length: int = ...
    ) -> IterDataPipe[R]:
        """Opens ``cycle_length`` items of its input at once with ``fn``, and takes ``block_length`` items of each in
        turn.
        """

    def lines_to_paragraphs(
        self: IterMethods[tuple[str, Any]], joiner: Callable[[list[Any]], Any] = ...
    ) -> IterDataPipe[tuple[str, Any]]:
        """Takes pairs (path, line), and yields pairs (path, paragraph): the lines up to an empty one, or to the next
        path.
        """

    def list_files(
        self,
        masks: str | Sequence[str] = "",
        *,
        recursive: bool = False,
        abspath: bool = False,
        non_deterministic: bool = False,
        length: int = -1,
    ) -> IterDataPipe[str]:
        """Yields the paths of the files in ``root``: a folder, a list of folders, or a node that yields folders."""

    def list_files_by_fsspec(
        self, masks: str | Sequence[str] = "", *, retries: int = ..., **kwargs: Any
    ) -> IterDataPipe[str]:
        """Yields the URLs of what is in ``root``: a folder's URL or path, a list of them, or a node that yields
        them.
        """

    def list_files_by_iopath(
        self, masks: str | Sequence[str] = "", *, pathmgr: None = None, handler: None = None
    ) -> IterDataPipe[str]:
        """``list_files_by_fsspec`` under the name, and with the arguments, of torchdata's node for IoPath."""

    def list_files_by_s3(
        self: IterMethods[str],
        length: int = -1,
        request_timeout_ms: int = -1,
        region: str = "",
        masks: str | Sequence[str] = "",
        **storage_options: Any,
    ) -> IterDataPipe[str]:
        """Takes prefixes (``"s3://bucket/train/shard-"``), and yields the URLs of all objects that begin so, sorted."""

    def list_row_groups(self, *, storage_options: Mapping[str, Any] | None = None) -> IterDataPipe[Piece]:
        """Yields a piece for each row group of parquet files: small things to shuffle, to choose from and to divide."""

    def load_files_by_s3(
        self: IterMethods[str],
        request_timeout_ms: int = -1,
        region: str = "",
        buffer_size: int | None = None,
        multi_part_download: bool | None = None,
        **storage_options: Any,
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Takes URLs of objects, and yields pairs (URL, open binary stream): ``open_files_by_fsspec`` with s3fs."""

    def load_from_bz2(self: IterMethods[tuple[str, Any]], length: int = -1) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Takes pairs (path, binary stream) of bz2 files, and yields pairs (path without ``.bz2``, decompressed
        stream).
        """

    def load_from_rar(
        self: IterMethods[tuple[str, Any]], *, length: int = -1
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Takes pairs (path, binary stream) of rar archives, and yields pairs (archive/member, stream) of their
        files.
        """

    def load_from_tar(
        self: IterMethods[tuple[str, Any]], mode: str = "r:*", length: int = -1
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Takes pairs (path, binary stream) of tar archives, and yields pairs (archive/member, stream) of their
        files.
        """

    def load_from_tfrecord(
        self: IterMethods[tuple[str, Any]], spec: Any | None = None, length: int = -1
    ) -> IterDataPipe[Any]:
        """Takes pairs (path, binary stream) of TFRecord files, and yields their examples, as ``read_tfrecord`` does:
        dicts of tensors and lists of bytes.
        """

    def load_from_xz(self: IterMethods[tuple[str, Any]], length: int = -1) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Takes pairs (path, binary stream) of xz files, and yields pairs (path without ``.xz``, decompressed
        stream).
        """

    def load_from_zip(self: IterMethods[tuple[str, Any]], length: int = -1) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Takes pairs (path, binary stream) of zip archives, and yields pairs (archive/member, stream) of their
        files.
        """

    def load_parquet_as_df(
        self, dtype: Any = None, columns: Sequence[str] | None = None, device: str = "", use_threads: bool = False
    ) -> IterDataPipe[Any]:
        """Takes paths or URLs of parquet files, and yields a ``pyarrow.Table`` for each row group of them."""

    @overload
    def map(self, fn: Callable[[T_co], R]) -> IterDataPipe[R]:
        """Applies ``fn`` to every item."""

    @overload
    def map(self, fn: Callable[..., Any], input_col: Any, output_col: Any = None) -> IterDataPipe[Any]:
        """Applies ``fn`` to every item."""

    def map_batches(
        self, fn: Callable[[list[Any]], Iterable[R]], batch_size: int, input_col: Any = None
    ) -> IterDataPipe[R]:
        """Calls ``fn`` with lists of ``batch_size`` consecutive items, and hands out the items of its results one by
        one.
        """

    def max_token_bucketize(
        self,
        max_token_count: int,
        len_fn: Callable[[T_co], int] = ...,
        min_len: int = 0,
        max_len: int | None = None,
        buffer_size: int | None = 1000,
        include_padding: bool = False,
    ) -> IterDataPipe[list[T_co]]:
        """Makes batches of the shortest items first, out of the next ``buffer_size`` (None: all there are)."""

    def mix(
        self,
        *datapipes: IterDataPipe[T_co],
        weights: Weights,
        by: Literal["samples", "tokens"] | Callable[[Any], float] = "samples",
        stop: Stop = "first_exhausted",
        names: Sequence[str] = ...,
    ) -> IterDataPipe[T_co]:
        """Hands out the items of several inputs in the proportion of ``weights``, in random order, and evenly."""

    def mux(self, *datapipes: IterDataPipe[T_co]) -> IterDataPipe[T_co]:
        """The first items of all inputs, then the second ones of all ..., until the shortest input ends."""

    def mux_longest(self, *datapipes: IterDataPipe[T_co]) -> IterDataPipe[T_co]:
        """The first items of all inputs, then the second ones of all ..., without those that have ended, until all
        have.
        """

    def on_disk_cache(
        self,
        filepath_fn: Callable[[Any], str] | None = None,
        hash_dict: Mapping[str, str] | None = None,
        hash_type: str = "sha256",
        extra_check_fn: Callable[[str], bool] | None = None,
    ) -> IterDataPipe[Any]:
        """Begins a part of a pipeline whose results are kept in files; ``end_caching`` ends it."""

    def on_error(
        self,
        policy: Literal["raise", "skip"],
        *,
        budget: int | None = 100,
        errors: type[Exception] | tuple[type[Exception], ...] = ...,
    ) -> IterDataPipe[T_co]:
        """Says of all nodes before it, up to another ``on_error``, what happens when an item makes one raise."""

    def open_files(
        self, mode: str = "r", encoding: str | None = None, length: int = -1
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Yields pairs (path, open stream) for the paths of the input."""

    def open_files_by_fsspec(
        self, mode: str = "r", *, kwargs_for_open: Mapping[str, Any] | None = None, retries: int = ..., **kwargs: Any
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Takes URLs or paths, and yields pairs (URL, open stream)."""

    def open_files_by_iopath(
        self, mode: str = "r", pathmgr: None = None, handler: None = None
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """``open_files_by_fsspec`` under the name, and with the arguments, of torchdata's node for IoPath."""

    def pack(
        self,
        length: int | Mapping[str, int],
        *,
        strategy: Strategy = "concat",
        bins: int | None = None,
        window: int | None = None,
        max_sequences_per_bin: int | None = None,
        overflow: Overflow | None = None,
        pad_value: Any = 0,
        keep: Sequence[str] = ...,
        drop_last: bool = False,
    ) -> IterDataPipe[dict[str, Any]]:
        """Packs samples of any length into sequences of ``length`` entries, and says which entry belongs to which
        sample.
        """

    def pad_batch(
        self,
        pad_value: Any = 0,
        *,
        length: int | Sequence[int] | None = None,
        multiple_of: int | None = None,
        side: Literal["left", "right"] = "right",
    ) -> IterDataPipe[Any]:
        """Pads the samples of each batch (a list, from ``batch`` or its like) to one length, and stacks them."""

    @overload
    def parallel_map(
        self, fn: Callable[[T_co], R], *, num_threads: int = ..., buffer_size: int | None = ...
    ) -> IterDataPipe[R]:
        """Applies ``fn`` to several items at a time, in ``num_threads`` threads, and hands the results out in order."""

    @overload
    def parallel_map(
        self,
        fn: Callable[..., Any],
        input_col: Any = ...,
        output_col: Any = ...,
        *,
        num_threads: int = ...,
        buffer_size: int | None = ...,
        rng: bool = ...,
    ) -> IterDataPipe[Any]:
        """Applies ``fn`` to several items at a time, in ``num_threads`` threads, and hands the results out in order."""

    def parse_csv(
        self: IterMethods[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str | None = None,
        return_path: bool = False,
        as_tuple: bool = False,
        strict: bool = True,
        **fmtparams: Any,
    ) -> IterDataPipe[Any]:
        """Takes pairs (path, stream) of tables as text, and yields their rows: lists of text, tuples with
        ``as_tuple``.
        """

    def parse_csv_as_dict(
        self: IterMethods[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str | None = None,
        return_path: bool = False,
        strict: bool = True,
        **fmtparams: Any,
    ) -> IterDataPipe[Any]:
        """Takes pairs (path, stream) of tables as text, and yields each row as a dict from column to text."""

    def parse_json_files(self: IterMethods[tuple[str, Any]], **kwargs: Any) -> IterDataPipe[tuple[str, Any]]:
        """Takes pairs (path, stream) of JSON files, and yields pairs (path, value)."""

    def pin_memory(self, device: Any = None, pin_memory_fn: Callable[[Any, Any], Any] = ...) -> IterDataPipe[T_co]:
        """Puts each item through ``pin_memory_fn(item, device)``, up to two items ahead where it runs in a thread."""

    def prefetch(self, buffer_size: int = 10) -> IterDataPipe[T_co]:
        """Pulls up to ``buffer_size`` items of ``source_datapipe`` ahead in one thread, and hands them on in order."""

    def random_map(self, fn: Callable[[T_co, np.random.Generator], R]) -> IterDataPipe[R]:
        """Applies ``fn(item, rng)`` to every item, where ``rng`` is a numpy ``Generator`` that belongs to this item
        alone.
        """

    @overload
    def random_split(
        self, weights: Mapping[Any, float], seed: Any, total_length: int | None = None, target: None = None
    ) -> list[IterDataPipe[T_co]]:
        """Deals the items of the input to parts, one for each key of ``weights``, by chance: which item goes to
        which part is a function of ``seed`` alone, and the same as torchdata 0.9's.
        """

    @overload
    def random_split(
        self, weights: Mapping[Any, float], seed: Any, total_length: int | None = None, *, target: Hashable
    ) -> IterDataPipe[T_co]:
        """Deals the items of the input to parts, one for each key of ``weights``, by chance: which item goes to
        which part is a function of ``seed`` alone, and the same as torchdata 0.9's.
        """

    def read_arrow(
        self,
        columns: Sequence[str] | None = None,
        *,
        filter: Any = None,
        batch_size: int | None = None,
        format: str | None = None,
        fill_null: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> IterDataPipe[Any]:
        """Yields the rows of Arrow files as dicts, or with ``batch_size`` dicts of columns: the file (Feather) and
        the stream format, which Hugging Face ``datasets`` keeps its data in.
        """

    def read_csv(
        self,
        columns: Sequence[str] | None = None,
        *,
        header: bool = True,
        encoding: str = "utf-8",
        compression: str | None = "infer",
        storage_options: Mapping[str, Any] | None = None,
        **fmtparams: Any,
    ) -> IterDataPipe[Any]:
        """Yields the rows of CSV files (RFC 4180): dicts from column name to text, or lists without a ``header``."""

    def read_from_gdrive(
        self: IterMethods[str],
        *,
        timeout: float | None = None,
        skip_on_error: bool = False,
        retries: int = ...,
        **kwargs: Any,
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Takes links to files in Google Drive that anybody may download, and yields pairs (file name, open binary
        stream).
        """

    def read_from_http(
        self: IterMethods[str],
        timeout: float | None = None,
        skip_on_error: bool = False,
        *,
        retries: int = ...,
        **kwargs: Any,
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """Takes URLs (``http://``, ``https://``), and yields pairs (URL, open binary stream)."""

    def read_from_remote(
        self: IterMethods[str],
        *,
        timeout: float | None = None,
        skip_on_error: bool = False,
        retries: int = ...,
        **kwargs: Any,
    ) -> IterDataPipe[tuple[str, StreamWrapper]]:
        """``read_from_gdrive`` for links to Google Drive, ``read_from_http`` for other URLs."""

    def read_from_stream(self: IterMethods[tuple[str, Any]], chunk: int | None = None) -> IterDataPipe[tuple[str, Any]]:
        """Takes pairs (path, stream), and yields pairs (path, content): the whole, or pieces of ``chunk`` bytes or
        letters.
        """

    def read_jsonl(
        self,
        encoding: str = "utf-8",
        *,
        compression: str | None = "infer",
        storage_options: Mapping[str, Any] | None = None,
    ) -> IterDataPipe[Any]:
        """Yields the JSON value of each line of files of JSON Lines (jsonlines.org); blank lines count as none."""

    def read_lines(
        self,
        encoding: str = "utf-8",
        *,
        compression: str | None = "infer",
        storage_options: Mapping[str, Any] | None = None,
    ) -> IterDataPipe[str]:
        r"""Yields the lines of text files, without their ends (``\n`` or ``\r\n``), one file after the other."""

    def read_parquet(
        self,
        columns: Sequence[str] | None = None,
        *,
        filter: Any = None,
        batch_size: int | None = None,
        format: str | None = None,
        fill_null: Any = None,
        use_threads: bool = False,
        partitioning: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> IterDataPipe[Any]:
        """Yields the rows of parquet files as dicts, or with ``batch_size`` dicts of columns."""

    def read_tfrecord(
        self,
        spec: Mapping[str, tuple[Sequence[int], Any]] | None = None,
        *,
        parse: bool = True,
        verify: bool = True,
        compression: str | None = "infer",
        storage_options: Mapping[str, Any] | None = None,
    ) -> IterDataPipe[Any]:
        """Yields the records of TFRecord files: ``tf.train.Example`` and ``SequenceExample`` as dicts of tensors, or
        bytes.
        """

    def read_webdataset(
        self,
        extensions: Sequence[str] | None = None,
        *,
        decode: bool = True,
        images: str | None = "pil",
        handlers: Mapping[str, Callable[[bytes], Any]] | None = None,
        compression: str | None = "infer",
        storage_options: Mapping[str, Any] | None = None,
    ) -> IterDataPipe[dict[str, Any]]:
        """Yields the samples of WebDataset's tar shards: dicts with ``__key__``, ``__url__`` (the shard) and what
        the sample's files hold, by their endings.
        """

    def read_zip(
        self, mask: str = "", *, storage_options: Mapping[str, Any] | None = None
    ) -> IterDataPipe[tuple[str, bytes]]:
        """Yields pairs (archive/name, content) of the files in zip archives, in the order of the archive's table."""

    def readlines(
        self: IterMethods[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        strip_newline: bool = True,
        decode: bool = False,
        encoding: str = "utf-8",
        errors: str | None = None,
        return_path: bool = True,
        strict: bool = True,
    ) -> IterDataPipe[Any]:
        """Takes pairs (path, stream), and yields pairs (path, line), or lines alone with ``return_path=False``."""

    def rebatch(self, batch_size: int, drop_last: bool = False, *, collated: bool = False) -> IterDataPipe[Any]:
        """Cuts and joins batches so that each has ``batch_size`` rows; a shorter last one is left out with
        ``drop_last``.
        """

    def repeat(self, times: int) -> IterDataPipe[T_co]:
        """Hands out every item ``times`` times in a row; to repeat whole passes use ``cycle``."""

    def retry(
        self,
        attempts: int = 3,
        *,
        errors: type[Exception] | tuple[type[Exception], ...] = ...,
        backoff_s: float = 0.5,
        max_backoff_s: float = 30.0,
    ) -> IterDataPipe[T_co]:
        """Calls functions of the nodes before it again when they raise one of ``errors``: ``attempts`` times in all."""

    def round_robin_demux(self, num_instances: int, buffer_size: int = 1000) -> list[IterDataPipe[T_co]]:
        """``num_instances`` branches that get the items of the input in turn."""

    def routed_decode(
        self: IterMethods[tuple[str, Any]], *handlers: Callable[[str, bytes], Any], key_fn: Callable[[str], str] = ...
    ) -> IterDataPipe[tuple[str, Any]]:
        """Takes pairs (path, open stream), and yields pairs (path, what the first handler that knows the ending
        makes of it).
        """

    def rows2columnar(
        self: IterMethods[Sequence[Any]], column_names: Sequence[Any] | None = None
    ) -> IterDataPipe[dict[Any, list[Any]]]:
        """Makes of each batch of rows a dict from a column's name to the list of its values."""

    def save_by_fsspec(
        self: IterMethods[tuple[Any, Any]],
        mode: str = "w",
        filepath_fn: Callable[[Any], str] | None = None,
        *,
        kwargs_for_open: Mapping[str, Any] | None = None,
        root: str | None = None,
        retries: int = ...,
        **kwargs: Any,
    ) -> IterDataPipe[str]:
        """Takes pairs (name, data), writes each to a file, and yields the URLs or paths of these."""

    def save_by_iopath(
        self: IterMethods[tuple[Any, Any]],
        mode: str = "w",
        filepath_fn: Callable[[Any], str] | None = None,
        *,
        pathmgr: None = None,
        handler: None = None,
    ) -> IterDataPipe[str]:
        """``save_by_fsspec`` under the name, and with the arguments, of torchdata's node for IoPath."""

    def save_to_disk(
        self: IterMethods[tuple[Any, Any]],
        mode: str = "w",
        filepath_fn: Callable[[Any], str] | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
    ) -> IterDataPipe[str]:
        """Takes pairs (name, data), writes each to a file, and yields the paths of these."""

    def set_length(self, length: int) -> IterDataPipe[T_co]:
        """Its input, with ``length`` as its ``len()``: for progress bars and schedules."""

    def shard_expand(self: IterMethods[str]) -> IterDataPipe[str]:
        """Takes names in which braces stand as in a shell (``"train-{000..199}.tar"``, ``"{a,b}.tar"``), and yields
        all names that they stand for.
        """

    def shard_pieces(
        self, *, shuffle: bool = True, piece_bytes: int | None = None, plan_file: str | os.PathLike[str] | None = None
    ) -> IterDataPipe[T_co]:
        """The same reader of files, over pieces of them that are shuffled and divided: each shard reads its own
        alone.
        """

    def sharding_filter(self, sharding_group_filter: SHARDING_PRIORITIES | None = None) -> IterDataPipe[T_co]:
        """Keeps the items of one shard: number ``shard``, ``shard + n``, ``shard + 2n`` ... of its input."""

    def sharding_round_robin_dispatch(
        self, sharding_group_filter: SHARDING_PRIORITIES | None = None
    ) -> IterDataPipe[T_co]:
        """Deals its input's items to the shards in turn; all before it runs only once, in a process of its own."""

    def shuffle(self, *, buffer_size: int = 10000, unbatch_level: int = 0) -> IterDataPipe[T_co]:
        """Hands out items in random order: each time one, drawn evenly, of the next ``buffer_size`` that are left."""

    @overload
    def shuffled_flatmap(self, *, input_col: Any = ..., buffer_size: int = ...) -> IterDataPipe[Any]:
        """Opens ``buffer_size`` items of its input at once with ``fn``, and takes each item from one of them, drawn
        evenly.
        """

    @overload
    def shuffled_flatmap(
        self, fn: Callable[..., Iterable[R]], input_col: Any = ..., buffer_size: int = ...
    ) -> IterDataPipe[R]:
        """Opens ``buffer_size`` items of its input at once with ``fn``, and takes each item from one of them, drawn
        evenly.
        """

    def skip(self, count: int) -> IterDataPipe[T_co]:
        """All items but the first ``count``."""

    def slice(
        self, index: Hashable | list[Hashable], stop: int | None = None, step: int | None = None
    ) -> IterDataPipe[Any]:
        """Keeps parts of each item: of tuples and lists ``item[index:stop:step]``, or the indices in a list
        ``index``, in their own order; of dicts the key ``index``, or the keys in a list of them.
        """

    def sort(self, window: int, key_fn: Callable[[T_co], Any] = ..., *, reverse: bool = False) -> IterDataPipe[T_co]:
        """Takes ``window`` items at a time and hands them out in the order of ``key_fn``; equal ones stay in order."""

    def take(self, count: int) -> IterDataPipe[T_co]:
        """The first ``count`` items; no more than these are pulled from the input."""

    @overload
    def threadpool_map(
        self, fn: Callable[[T_co], R], *, scheduled_tasks: int = ..., max_workers: int | None = ...
    ) -> IterDataPipe[R]:
        """``parallel_map`` with torchdata's arguments: ``scheduled_tasks`` items are pulled ahead, for
        ``max_workers``.
        """

    @overload
    def threadpool_map(
        self,
        fn: Callable[..., Any],
        input_col: Any = ...,
        output_col: Any = ...,
        scheduled_tasks: int = ...,
        max_workers: int | None = ...,
        **threadpool_kwargs: Any,
    ) -> IterDataPipe[Any]:
        """``parallel_map`` with torchdata's arguments: ``scheduled_tasks`` items are pulled ahead, for
        ``max_workers``.
        """

    def to_device(
        self, device: str | torch.device | Backend, prefetch: int = 2, **options: Unpack[DeviceKeywords]
    ) -> IterDataPipe[T_co]:
        """Moves the tensors of each batch to ``device``, up to ``prefetch`` batches ahead, in threads and in order."""

    def to_map_datapipe(self, key_value_fn: Callable[[Any], Any] | None = None) -> MapDataPipe[Any]:
        """Reads all of ``datapipe`` when the first item is asked for, and keeps it: pairs (key, value), or what
        ``key_value_fn`` makes such pairs of.
        """

    def unbatch(self, unbatch_level: int = 1) -> IterDataPipe[Any]:
        """Takes lists apart, ``unbatch_level`` levels deep (-1: all); tuples, arrays and tensors are left whole."""

    def unzip(
        self: IterMethods[Sequence[T]],
        sequence_length: int,
        buffer_size: int = 1000,
        columns_to_skip: Sequence[int] | None = None,
    ) -> list[IterDataPipe[T]]:
        """Takes sequences of ``sequence_length`` values, and makes a branch for each position in them: all first
        values, all second ones, and so on, but for the positions ``columns_to_skip``.
        """

    def webdataset(self: IterMethods[tuple[str, Any]]) -> IterDataPipe[dict[str, Any]]:
        """Takes pairs (path, content), and yields a dict for each run of paths that differ only in what follows the
        first dot of the file's name: ``{"__key__": "shard.tar/0001", ".jpg": ..., ".cls": ...}``.
        """

    def window_shuffle(self, window: int) -> IterDataPipe[T_co]:
        """Takes ``window`` items at a time and hands them out in random order, every order having the same chance."""

    def zip(self, *datapipes: IterDataPipe[Any], strict: bool = False) -> IterDataPipe[tuple[Any, ...]]:
        """Tuples of the first items of all inputs, then of the second ones ..., until the shortest input ends."""

    def zip_longest(self, *datapipes: IterDataPipe[Any], fill_value: Any = None) -> IterDataPipe[tuple[Any, ...]]:
        """Tuples of the first items of all inputs, then of the second ones ..., until the longest input ends."""

    def zip_with_iter(
        self,
        ref_datapipe: IterDataPipe[Any],
        key_fn: Callable[[T_co], Hashable],
        ref_key_fn: Callable[[Any], Hashable] | None = None,
        keep_key: bool = False,
        buffer_size: int | None = 10000,
        merge_fn: Callable[[T_co, Any], Any] | None = None,
    ) -> IterDataPipe[Any]:
        """Pairs each item of the input with the item of ``ref_datapipe`` that has the same key."""

    def zip_with_map(
        self,
        map_datapipe: MapDataPipe[Any],
        key_fn: Callable[[T_co], Any],
        merge_fn: Callable[[T_co, Any], Any] | None = None,
        keep_key: bool = False,
    ) -> IterDataPipe[Any]:
        """Pairs each item of the input with ``map_datapipe[key_fn(item)]``."""

class MapMethods(Generic[T_co]):
    """The functional forms of map-style nodes."""

    def batch(
        self, batch_size: int, drop_last: bool = False, wrapper_class: Callable[[list[Any]], Any] = ...
    ) -> MapDataPipe[list[T_co]]:
        """Batch ``i`` has the items from ``i * batch_size`` on; a shorter last one is left out with ``drop_last``."""

    def concat(self, *datapipes: MapDataPipe[T_co]) -> MapDataPipe[T_co]:
        """The items of the first input, then those of the second one, and so on, each read by indices from 0 on."""

    def in_memory_cache(self) -> MapDataPipe[T_co]:
        """Reads each item of ``source_dp`` once in a process, and hands out copies of what was read from then on."""

    @overload
    def map(self, fn: Callable[[T_co], R]) -> MapDataPipe[R]:
        """Applies ``fn`` to every item that is read."""

    @overload
    def map(self) -> MapDataPipe[T_co]:
        """Applies ``fn`` to every item that is read."""

    def shuffle(self, *, indices: Sequence[Any] | None = None, computed: bool | None = None) -> IterDataPipe[T_co]:
        """Reads a map-style node once through in random order: an *iterable* node."""

    def to_iter_datapipe(self, indices: Sequence[Any] | None = None) -> IterDataPipe[T_co]:
        """Reads the keys ``indices`` of a map-style node in order, by default ``range(len(datapipe))``."""

    def unzip(
        self: MapMethods[Sequence[T]], sequence_length: int, columns_to_skip: Sequence[int] | None = None
    ) -> list[MapDataPipe[T]]:
        """A list of nodes, one for each position in the items of ``source_datapipe``, which are sequences of
        ``sequence_length`` values, but for the positions ``columns_to_skip``.
        """

    def zip(self, *datapipes: MapDataPipe[Any]) -> MapDataPipe[tuple[Any, ...]]:
        """Under each key, the tuple of what all inputs have there; as long as the shortest one."""
