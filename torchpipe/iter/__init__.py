"""Iterable nodes: each is imported when it is first asked for, by its name or its form (``dp.map(...)``)."""

from typing import TYPE_CHECKING

from torchpipe.node.datapipe import DataChunk, IterDataPipe, functional_datapipe
from torchpipe.on_demand import on_demand

if TYPE_CHECKING:
    from torchpipe.iter._shared.paths import PathList
    from torchpipe.iter.archives.decompressor import (
        Bz2FileLoader,
        CompressionType,
        Decompressor,
        Extractor,
        XzFileLoader,
    )
    from torchpipe.iter.archives.rar_loader import RarArchiveLoader
    from torchpipe.iter.archives.webdataset import WebDataset
    from torchpipe.iter.archives.zip_loader import ZipArchiveLoader
    from torchpipe.iter.branching.demultiplexer import Demultiplexer, RoundRobinDemultiplexer
    from torchpipe.iter.branching.forker import Forker
    from torchpipe.iter.branching.random_splitter import RandomSplitter
    from torchpipe.iter.branching.unzipper import UnZipper
    from torchpipe.iter.caching.cacher import Cacher
    from torchpipe.iter.caching.in_memory_cache import InMemoryCacheHolder
    from torchpipe.iter.caching.on_disk_cache import EndOnDiskCacheHolder, OnDiskCacheHolder
    from torchpipe.iter.clouds.fsspec_lister import FSSpecFileLister, IoPathFileLister
    from torchpipe.iter.clouds.fsspec_opener import FSSpecFileOpener, IoPathFileOpener
    from torchpipe.iter.clouds.fsspec_saver import FSSpecSaver, IoPathSaver
    from torchpipe.iter.clouds.s3 import S3FileLister, S3FileLoader
    from torchpipe.iter.clouds.web_readers import GDriveReader, HttpReader, OnlineReader
    from torchpipe.iter.combining.concater import Concater
    from torchpipe.iter.combining.key_zippers import IterKeyZipper, MapKeyZipper
    from torchpipe.iter.combining.multiplexer import Multiplexer, MultiplexerLongest
    from torchpipe.iter.combining.sample_multiplexer import SampleMultiplexer
    from torchpipe.iter.combining.zipper import Zipper
    from torchpipe.iter.combining.zipper_longest import ZipperLongest
    from torchpipe.iter.files.file_opener import FileOpener
    from torchpipe.iter.files.hash_checker import HashChecker
    from torchpipe.iter.files.saver import Saver
    from torchpipe.iter.files.stream_reader import StreamReader
    from torchpipe.iter.files.tar_loader import TarArchiveLoader
    from torchpipe.iter.grouping.batch_mappers import BatchAsyncMapper, BatchMapper
    from torchpipe.iter.grouping.batcher import Batcher
    from torchpipe.iter.grouping.bucket_batcher import BucketBatcher
    from torchpipe.iter.grouping.collator import Collator
    from torchpipe.iter.grouping.grouper import Grouper
    from torchpipe.iter.grouping.rebatcher import ReBatcher
    from torchpipe.iter.grouping.rows_to_columnar import Rows2Columnar
    from torchpipe.iter.grouping.unbatcher import UnBatcher
    from torchpipe.iter.items.enumerator import Enumerator
    from torchpipe.iter.items.filter import Filter
    from torchpipe.iter.items.flatmapper import FlatMapper
    from torchpipe.iter.items.index_adder import IndexAdder
    from torchpipe.iter.items.mapper import Mapper
    from torchpipe.iter.items.part_selectors import Dropper, Flattener, Slicer
    from torchpipe.iter.items.random_mapper import RandomMapper
    from torchpipe.iter.items.shard_expander import ShardExpander
    from torchpipe.iter.limiting.cycler import Cycler
    from torchpipe.iter.limiting.header import Header, Taker
    from torchpipe.iter.limiting.length_setter import LengthSetter
    from torchpipe.iter.limiting.repeater import Repeater
    from torchpipe.iter.limiting.skipper import Skipper
    from torchpipe.iter.mixing.interleaver import Interleaver
    from torchpipe.iter.mixing.mixer import Mixer, Stop, Weights
    from torchpipe.iter.mixing.shuffled_flatmapper import ShuffledFlatMapper
    from torchpipe.iter.ordering.in_batch_shuffler import InBatchShuffler
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
    from torchpipe.iter.packing.max_token_bucketizer import MaxTokenBucketizer
    from torchpipe.iter.packing.packer import Overflow, Packer, Strategy
    from torchpipe.iter.parsing.csv_parser import CSVDictParser, CSVParser
    from torchpipe.iter.parsing.json_parser import JsonParser
    from torchpipe.iter.parsing.line_reader import LineReader
    from torchpipe.iter.parsing.paragraph_aggregator import ParagraphAggregator
    from torchpipe.iter.parsing.routed_decoder import RoutedDecoder
    from torchpipe.iter.parsing.tfrecord_loader import TFRecordExample, TFRecordExampleSpec, TFRecordLoader
    from torchpipe.iter.running.full_sync import FullSync
    from torchpipe.iter.running.on_error import OnError
    from torchpipe.iter.running.parallel_mapper import ParallelMapper, ThreadPoolMapper
    from torchpipe.iter.running.pin_memory import PinMemory, pin_memory_fn
    from torchpipe.iter.running.prefetch import Prefetcher
    from torchpipe.iter.running.retry import Retrier
    from torchpipe.iter.running.to_device import ToDevice
    from torchpipe.iter.shards.tfrecord_reader import TFRecordReader
    from torchpipe.iter.shards.webdataset_reader import WebDatasetReader
    from torchpipe.iter.shards.zip_reader import ZipReader
    from torchpipe.iter.sources.file_lister import FileLister
    from torchpipe.iter.sources.map_to_iter import MapToIterConverter
    from torchpipe.iter.sources.sampler import Sampler
    from torchpipe.iter.sources.wrapper import IterableWrapper
    from torchpipe.iter.tables.arrow_reader import ArrowReader
    from torchpipe.iter.tables.data_frames import DataFrameMaker, ParquetDataFrameLoader
    from torchpipe.iter.tables.hugging_face_reader import HuggingFaceHubReader, HuggingFaceReader
    from torchpipe.iter.tables.parquet_reader import ParquetReader
    from torchpipe.iter.tables.row_group_lister import RowGroupLister
    from torchpipe.iter.tables.sql_reader import SqlReader
    from torchpipe.iter.text.csv_reader import CsvReader
    from torchpipe.iter.text.line_readers import JsonlReader, TextLineReader
else:
    __getattr__, __dir__ = on_demand(__name__)

__all__ = [
    "SHARDING_PRIORITIES",
    "ArrowReader",
    "BatchAsyncMapper",
    "BatchMapper",
    "BatchPadder",
    "Batcher",
    "BucketBatcher",
    "Bz2FileLoader",
    "CSVDictParser",
    "CSVParser",
    "Cacher",
    "Collator",
    "CompressionType",
    "Concater",
    "CsvReader",
    "Cycler",
    "DataChunk",
    "DataFrameMaker",
    "Decompressor",
    "Demultiplexer",
    "Dropper",
    "DynamicBatcher",
    "EndOnDiskCacheHolder",
    "Enumerator",
    "Extractor",
    "FSSpecFileLister",
    "FSSpecFileOpener",
    "FSSpecSaver",
    "FileLister",
    "FileOpener",
    "Filter",
    "FlatMapper",
    "Flattener",
    "Forker",
    "FullSync",
    "GDriveReader",
    "Grouper",
    "HashChecker",
    "Header",
    "HttpReader",
    "HuggingFaceHubReader",
    "HuggingFaceReader",
    "InBatchShuffler",
    "InMemoryCacheHolder",
    "IndexAdder",
    "Interleaver",
    "IoPathFileLister",
    "IoPathFileOpener",
    "IoPathSaver",
    "IterDataPipe",
    "IterKeyZipper",
    "IterableWrapper",
    "JsonParser",
    "JsonlReader",
    "LengthBucketer",
    "LengthSetter",
    "LineReader",
    "MapKeyZipper",
    "MapToIterConverter",
    "Mapper",
    "MaxTokenBucketizer",
    "Mixer",
    "Multiplexer",
    "MultiplexerLongest",
    "OnDiskCacheHolder",
    "OnError",
    "OnlineReader",
    "Overflow",
    "Packer",
    "ParagraphAggregator",
    "ParallelMapper",
    "ParquetDataFrameLoader",
    "ParquetReader",
    "PathList",
    "PinMemory",
    "Prefetcher",
    "RandomMapper",
    "RandomSplitter",
    "RarArchiveLoader",
    "ReBatcher",
    "Repeater",
    "Retrier",
    "RoundRobinDemultiplexer",
    "RoutedDecoder",
    "RowGroupLister",
    "Rows2Columnar",
    "S3FileLister",
    "S3FileLoader",
    "SampleMultiplexer",
    "Sampler",
    "Saver",
    "ShardExpander",
    "ShardingFilter",
    "ShardingRoundRobinDispatcher",
    "ShuffledFlatMapper",
    "Shuffler",
    "Skipper",
    "Slicer",
    "Sorter",
    "SqlReader",
    "Stop",
    "Strategy",
    "StreamReader",
    "TFRecordExample",
    "TFRecordExampleSpec",
    "TFRecordLoader",
    "TFRecordReader",
    "Taker",
    "TarArchiveLoader",
    "TextLineReader",
    "ThreadPoolMapper",
    "ToDevice",
    "UnBatcher",
    "UnZipper",
    "WebDataset",
    "WebDatasetReader",
    "Weights",
    "WindowShuffler",
    "XzFileLoader",
    "ZipArchiveLoader",
    "ZipReader",
    "Zipper",
    "ZipperLongest",
    "functional_datapipe",
    "pin_memory_fn",
]
