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
    from torchpipe.torchdata.nodes.archives import (
        Bz2FileLoader,
        CompressionType,
        Decompressor,
        Extractor,
        RarArchiveLoader,
        TarArchiveLoader,
        TFRecordExample,
        TFRecordExampleSpec,
        TFRecordLoader,
        WebDataset,
        XzFileLoader,
        ZipArchiveLoader,
    )
    from torchpipe.torchdata.nodes.batches import (
        BatchAsyncMapper,
        BatchMapper,
        BucketBatcher,
        InBatchShuffler,
        MaxTokenBucketizer,
        Rows2Columnar,
    )
    from torchpipe.torchdata.nodes.branches import RoundRobinDemultiplexer, SampleMultiplexer, UnZipper
    from torchpipe.torchdata.nodes.data_frames import DataFrameMaker, ParquetDataFrameLoader
    from torchpipe.torchdata.nodes.files import (
        FileLister,
        HashChecker,
        RoutedDecoder,
        Saver,
        ShardExpander,
        StreamReader,
    )
    from torchpipe.torchdata.nodes.full_sync import FullSync
    from torchpipe.torchdata.nodes.items import (
        Dropper,
        Flattener,
        Header,
        IndexAdder,
        InMemoryCacheHolder,
        PinMemory,
        Sampler,
        Slicer,
        ThreadPoolMapper,
    )
    from torchpipe.torchdata.nodes.online import (
        GDriveReader,
        HuggingFaceHubReader,
        IoPathFileLister,
        IoPathFileOpener,
        IoPathSaver,
        OnlineReader,
        S3FileLister,
        S3FileLoader,
    )
    from torchpipe.torchdata.nodes.shuffled_flatmapper import ShuffledFlatMapper
    from torchpipe.torchdata.nodes.texts import CSVDictParser, CSVParser, JsonParser, LineReader, ParagraphAggregator
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
