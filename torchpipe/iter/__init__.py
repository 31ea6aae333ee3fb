"""Iterable nodes: each is imported when it is first asked for, by its name or its form (``dp.map(...)``).

torchdata's other names are in ``torchpipe.torchdata``. Asked for here they are found as well, but neither listed nor
known to type checkers. Written by ``make stubs`` from ``__all__`` of the package's modules: do not edit.
"""

from typing import TYPE_CHECKING

from torchpipe.node.datapipe import DataChunk, IterDataPipe, functional_datapipe
from torchpipe.on_demand import on_demand

if TYPE_CHECKING:
    from torchpipe.iter._shared.paths import PathList
    from torchpipe.iter._shared.pieces import FilePieces
    from torchpipe.iter.branching import Demultiplexer, Forker, RandomSplitter
    from torchpipe.iter.caching import Cacher
    from torchpipe.iter.combining import (
        Concater,
        IterKeyZipper,
        MapKeyZipper,
        Multiplexer,
        MultiplexerLongest,
        Zipper,
        ZipperLongest,
    )
    from torchpipe.iter.expanding import FlatMapper, Interleaver
    from torchpipe.iter.files import FileOpener, FSSpecFileLister, FSSpecFileOpener, FSSpecSaver
    from torchpipe.iter.grouping import Batcher, Collator, Grouper, ReBatcher, UnBatcher
    from torchpipe.iter.hugging_face import HuggingFaceReader
    from torchpipe.iter.items import Enumerator, Filter, Mapper, RandomMapper
    from torchpipe.iter.lengths import BatchPadder, DynamicBatcher, LengthBucketer
    from torchpipe.iter.limiting import Cycler, LengthSetter, Repeater, Skipper, Taker
    from torchpipe.iter.mixing import Mixer, Stop, Weights
    from torchpipe.iter.on_disk_cache import EndOnDiskCacheHolder, OnDiskCacheHolder
    from torchpipe.iter.ordering import (
        SHARDING_PRIORITIES,
        ShardingFilter,
        ShardingRoundRobinDispatcher,
        Sorter,
        WindowShuffler,
    )
    from torchpipe.iter.packing import Overflow, Packer, Strategy
    from torchpipe.iter.parallel import ParallelMapper
    from torchpipe.iter.pieces import PieceSharder
    from torchpipe.iter.running import OnError, Prefetcher, Retrier
    from torchpipe.iter.shards import TFRecordReader, WebDatasetReader, ZipReader
    from torchpipe.iter.shuffling import Shuffler
    from torchpipe.iter.sources import IterableWrapper, MapToIterConverter
    from torchpipe.iter.sql import SqlReader
    from torchpipe.iter.tables import ArrowReader, ParquetReader, RowGroupLister
    from torchpipe.iter.text import CsvReader, JsonlReader, TextLineReader
    from torchpipe.iter.to_device import ToDevice
    from torchpipe.iter.web import HttpReader
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
