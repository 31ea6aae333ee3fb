"""Iterable nodes: each is imported when it is first asked for, by its name or its form (``dp.map(...)``).

torchdata's other names are in ``torchpipe.torchdata``. Asked for here they are found as well, but neither listed nor
known to type checkers.
"""

from typing import TYPE_CHECKING

from torchpipe.node.datapipe import DataChunk, IterDataPipe, functional_datapipe
from torchpipe.on_demand import on_demand

if TYPE_CHECKING:
    from torchpipe.iter._shared.paths import PathList
    from torchpipe.iter._shared.pieces import FilePieces
    from torchpipe.iter.branching.demultiplexer import Demultiplexer
    from torchpipe.iter.branching.forker import Forker
    from torchpipe.iter.branching.random_splitter import RandomSplitter
    from torchpipe.iter.caching.cacher import Cacher
    from torchpipe.iter.caching.on_disk_cache import EndOnDiskCacheHolder, OnDiskCacheHolder
    from torchpipe.iter.combining.concater import Concater
    from torchpipe.iter.combining.key_zippers import IterKeyZipper, MapKeyZipper
    from torchpipe.iter.combining.multiplexer import Multiplexer, MultiplexerLongest
    from torchpipe.iter.combining.zipper import Zipper
    from torchpipe.iter.combining.zipper_longest import ZipperLongest
    from torchpipe.iter.files.file_opener import FileOpener
    from torchpipe.iter.files.fsspec_lister import FSSpecFileLister
    from torchpipe.iter.files.fsspec_opener import FSSpecFileOpener
    from torchpipe.iter.files.fsspec_saver import FSSpecSaver
    from torchpipe.iter.files.http_reader import HttpReader
    from torchpipe.iter.grouping.batcher import Batcher
    from torchpipe.iter.grouping.collator import Collator
    from torchpipe.iter.grouping.grouper import Grouper
    from torchpipe.iter.grouping.rebatcher import ReBatcher
    from torchpipe.iter.grouping.unbatcher import UnBatcher
    from torchpipe.iter.items.enumerator import Enumerator
    from torchpipe.iter.items.filter import Filter
    from torchpipe.iter.items.flatmapper import FlatMapper
    from torchpipe.iter.items.mapper import Mapper
    from torchpipe.iter.items.random_mapper import RandomMapper
    from torchpipe.iter.limiting.cycler import Cycler
    from torchpipe.iter.limiting.length_setter import LengthSetter
    from torchpipe.iter.limiting.repeater import Repeater
    from torchpipe.iter.limiting.skipper import Skipper
    from torchpipe.iter.limiting.taker import Taker
    from torchpipe.iter.mixing.interleaver import Interleaver
    from torchpipe.iter.mixing.mixer import Mixer, Stop, Weights
    from torchpipe.iter.ordering.sharding_filter import (
        SHARDING_PRIORITIES,
        ShardingFilter,
        ShardingRoundRobinDispatcher,
    )
    from torchpipe.iter.ordering.shuffler import Shuffler
    from torchpipe.iter.ordering.sorter import Sorter, WindowShuffler
    from torchpipe.iter.packing.batch_padder import BatchPadder
    from torchpipe.iter.packing.dynamic_batcher import DynamicBatcher
    from torchpipe.iter.packing.length_bucketer import LengthBucketer
    from torchpipe.iter.packing.packer import Overflow, Packer, Strategy
    from torchpipe.iter.running.on_error import OnError
    from torchpipe.iter.running.parallel_mapper import ParallelMapper
    from torchpipe.iter.running.prefetch import Prefetcher
    from torchpipe.iter.running.retry import Retrier
    from torchpipe.iter.running.to_device import ToDevice
    from torchpipe.iter.shards.tfrecord_reader import TFRecordReader
    from torchpipe.iter.shards.webdataset_reader import WebDatasetReader
    from torchpipe.iter.shards.zip_reader import ZipReader
    from torchpipe.iter.sources.map_to_iter import MapToIterConverter
    from torchpipe.iter.sources.piece_sharder import PieceSharder
    from torchpipe.iter.sources.wrapper import IterableWrapper
    from torchpipe.iter.tables.arrow_reader import ArrowReader
    from torchpipe.iter.tables.hugging_face_reader import HuggingFaceReader
    from torchpipe.iter.tables.parquet_reader import ParquetReader
    from torchpipe.iter.tables.row_group_lister import RowGroupLister
    from torchpipe.iter.tables.sql_reader import SqlReader
    from torchpipe.iter.text.csv_reader import CsvReader
    from torchpipe.iter.text.line_readers import JsonlReader, TextLineReader
else:
    __getattr__, __dir__ = on_demand(__name__, unlisted="torchpipe.torchdata")

__all__ = [
    "SHARDING_PRIORITIES",
    "ArrowReader",
    "BatchPadder",
    "Batcher",
    "Cacher",
    "Collator",
    "Concater",
    "CsvReader",
    "Cycler",
    "DataChunk",
    "Demultiplexer",
    "DynamicBatcher",
    "EndOnDiskCacheHolder",
    "Enumerator",
    "FSSpecFileLister",
    "FSSpecFileOpener",
    "FSSpecSaver",
    "FileOpener",
    "FilePieces",
    "Filter",
    "FlatMapper",
    "Forker",
    "Grouper",
    "HttpReader",
    "HuggingFaceReader",
    "Interleaver",
    "IterDataPipe",
    "IterKeyZipper",
    "IterableWrapper",
    "JsonlReader",
    "LengthBucketer",
    "LengthSetter",
    "MapKeyZipper",
    "MapToIterConverter",
    "Mapper",
    "Mixer",
    "Multiplexer",
    "MultiplexerLongest",
    "OnDiskCacheHolder",
    "OnError",
    "Overflow",
    "Packer",
    "ParallelMapper",
    "ParquetReader",
    "PathList",
    "PieceSharder",
    "Prefetcher",
    "RandomMapper",
    "RandomSplitter",
    "ReBatcher",
    "Repeater",
    "Retrier",
    "RowGroupLister",
    "ShardingFilter",
    "ShardingRoundRobinDispatcher",
    "Shuffler",
    "Skipper",
    "Sorter",
    "SqlReader",
    "Stop",
    "Strategy",
    "TFRecordReader",
    "Taker",
    "TextLineReader",
    "ToDevice",
    "UnBatcher",
    "WebDatasetReader",
    "Weights",
    "WindowShuffler",
    "ZipReader",
    "Zipper",
    "ZipperLongest",
    "functional_datapipe",
]
