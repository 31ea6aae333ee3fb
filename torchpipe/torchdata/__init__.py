"""torchdata's nodes for which torchpipe has a better one, and torchdata 0.9's modules under their paths.

``torchpipe.torchdata.datapipes`` and ``torchpipe.torchdata.dataloader2`` have the names of torchdata's modules of these
paths; after :func:`install`, ``import torchdata.datapipes`` finds them. A name is imported when it is first asked for.

A ring: the core does not import it. It uses these hooks: ``torchpipe.public_names`` lists its nodes and their forms, so
that ``dp.header(...)`` and ``torchpipe.iter.Header`` find them; ``DataLoader.load_state_dict`` asks ``stateful`` for a
position where a state has none of the loader's own keys, and checks it as one of its own.
"""

from typing import TYPE_CHECKING

from torchpipe.on_demand import on_demand
from torchpipe.torchdata.importing import install

if TYPE_CHECKING:
    from torchpipe.torchdata.nodes.batch_mappers import BatchAsyncMapper, BatchMapper
    from torchpipe.torchdata.nodes.bucket_batcher import BucketBatcher
    from torchpipe.torchdata.nodes.csv_parser import CSVDictParser, CSVParser
    from torchpipe.torchdata.nodes.data_frames import DataFrameMaker, ParquetDataFrameLoader
    from torchpipe.torchdata.nodes.decompressor import (
        Bz2FileLoader,
        CompressionType,
        Decompressor,
        Extractor,
        XzFileLoader,
    )
    from torchpipe.torchdata.nodes.file_lister import FileLister
    from torchpipe.torchdata.nodes.full_sync import FullSync
    from torchpipe.torchdata.nodes.hash_checker import HashChecker
    from torchpipe.torchdata.nodes.header import Header
    from torchpipe.torchdata.nodes.hugging_face_hub_reader import HuggingFaceHubReader
    from torchpipe.torchdata.nodes.in_batch_shuffler import InBatchShuffler
    from torchpipe.torchdata.nodes.in_memory_cache import InMemoryCacheHolder
    from torchpipe.torchdata.nodes.index_adder import IndexAdder
    from torchpipe.torchdata.nodes.iopath import IoPathFileLister, IoPathFileOpener, IoPathSaver
    from torchpipe.torchdata.nodes.json_parser import JsonParser
    from torchpipe.torchdata.nodes.line_reader import LineReader
    from torchpipe.torchdata.nodes.max_token_bucketizer import MaxTokenBucketizer
    from torchpipe.torchdata.nodes.online_readers import GDriveReader, OnlineReader
    from torchpipe.torchdata.nodes.paragraph_aggregator import ParagraphAggregator
    from torchpipe.torchdata.nodes.part_selectors import Dropper, Flattener, Slicer
    from torchpipe.torchdata.nodes.pin_memory import PinMemory
    from torchpipe.torchdata.nodes.rar_loader import RarArchiveLoader
    from torchpipe.torchdata.nodes.round_robin_demultiplexer import RoundRobinDemultiplexer
    from torchpipe.torchdata.nodes.routed_decoder import RoutedDecoder
    from torchpipe.torchdata.nodes.rows_to_columnar import Rows2Columnar
    from torchpipe.torchdata.nodes.s3 import S3FileLister, S3FileLoader
    from torchpipe.torchdata.nodes.sample_multiplexer import SampleMultiplexer
    from torchpipe.torchdata.nodes.sampler import Sampler
    from torchpipe.torchdata.nodes.saver import Saver
    from torchpipe.torchdata.nodes.shard_expander import ShardExpander
    from torchpipe.torchdata.nodes.shuffled_flatmapper import ShuffledFlatMapper
    from torchpipe.torchdata.nodes.stream_reader import StreamReader
    from torchpipe.torchdata.nodes.tar_loader import TarArchiveLoader
    from torchpipe.torchdata.nodes.tfrecord_loader import TFRecordExample, TFRecordExampleSpec, TFRecordLoader
    from torchpipe.torchdata.nodes.thread_pool_mapper import ThreadPoolMapper
    from torchpipe.torchdata.nodes.unzipper import UnZipper
    from torchpipe.torchdata.nodes.webdataset import WebDataset
    from torchpipe.torchdata.nodes.zip_loader import ZipArchiveLoader
    from torchpipe.utils import pin_memory_fn
else:
    __getattr__, __dir__ = on_demand(__name__)

__all__ = [
    "BatchAsyncMapper",
    "BatchMapper",
    "BucketBatcher",
    "Bz2FileLoader",
    "CSVDictParser",
    "CSVParser",
    "CompressionType",
    "DataFrameMaker",
    "Decompressor",
    "Dropper",
    "Extractor",
    "FileLister",
    "Flattener",
    "FullSync",
    "GDriveReader",
    "HashChecker",
    "Header",
    "HuggingFaceHubReader",
    "InBatchShuffler",
    "InMemoryCacheHolder",
    "IndexAdder",
    "IoPathFileLister",
    "IoPathFileOpener",
    "IoPathSaver",
    "JsonParser",
    "LineReader",
    "MaxTokenBucketizer",
    "OnlineReader",
    "ParagraphAggregator",
    "ParquetDataFrameLoader",
    "PinMemory",
    "RarArchiveLoader",
    "RoundRobinDemultiplexer",
    "RoutedDecoder",
    "Rows2Columnar",
    "S3FileLister",
    "S3FileLoader",
    "SampleMultiplexer",
    "Sampler",
    "Saver",
    "ShardExpander",
    "ShuffledFlatMapper",
    "Slicer",
    "StreamReader",
    "TFRecordExample",
    "TFRecordExampleSpec",
    "TFRecordLoader",
    "TarArchiveLoader",
    "ThreadPoolMapper",
    "UnZipper",
    "WebDataset",
    "XzFileLoader",
    "ZipArchiveLoader",
    "install",
    "pin_memory_fn",
]
