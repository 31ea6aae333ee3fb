"""Each parameter of each of torchdata's other nodes counts for the graph's identity, as those of the core's do."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import RandomSampler, SequentialSampler

import torchpipe.torchdata
from tests.graph import test_arguments_count as core

CLASSES = [
    "BatchMapper",
    "CSVDictParser",
    "CSVParser",
    "DataFrameMaker",
    "Dropper",
    "Flattener",
    "HashChecker",
    "Header",
    "IndexAdder",
    "LineReader",
    "MaxTokenBucketizer",
    "ParagraphAggregator",
    "Rows2Columnar",
    "Sampler",
    "ShuffledFlatMapper",
    "Slicer",
    "StreamReader",
]
"""Those that are made of one node, or of values."""

NOT_LOOKED_AT = [
    "BatchAsyncMapper",
    "BucketBatcher",
    "InMemoryCacheHolder",
    "ThreadPoolMapper",
    "GDriveReader",
    "OnlineReader",
    "HuggingFaceHubReader",
    "S3FileLister",
    "S3FileLoader",
    "IoPathFileLister",
    "IoPathFileOpener",
    "IoPathSaver",
    "RoundRobinDemultiplexer",
    "UnZipper",
    "SampleMultiplexer",
    "InBatchShuffler",
    "RoutedDecoder",
    "FileLister",
    "Saver",
    "Bz2FileLoader",
    "Decompressor",
    "Extractor",
    "RarArchiveLoader",
    "TFRecordLoader",
    "TarArchiveLoader",
    "WebDataset",
    "XzFileLoader",
    "ZipArchiveLoader",
    "JsonParser",
    "ParquetDataFrameLoader",
    "ShardExpander",
    "FullSync",
    "PinMemory",
]
"""Of several inputs or none, of files and archives, or by how fast they are: ``test_as_core.py`` has forms of these."""

OF_CLASS: dict[tuple[str, str], tuple[Any, Any]] = {
    ("HashChecker", "hash_dict"): ({"a": "0" * 64}, {"a": "1" * 64}),
    ("Slicer", "stop"): (3, 4),
    ("MaxTokenBucketizer", "max_len"): (50, 60),
}
OTHERS: dict[tuple[str, str], dict[str, Any]] = {
    ("Slicer", "stop"): {"index": 0},
    ("Slicer", "step"): {"index": 0, "stop": 9},
    **{("LineReader", name): {"decode": True} for name in ("encoding", "errors")},
    ("Sampler", "sampler_args"): {"sampler": lambda *sizes, data_source: SequentialSampler(data_source)},
    ("Sampler", "sampler_kwargs"): {"sampler": RandomSampler},
}


def test_every_node_is_known() -> None:
    found = {name for name in torchpipe.torchdata.__all__ if isinstance(getattr(torchpipe.torchdata, name), type)}
    assert found - {"CompressionType"} == {*CLASSES, *NOT_LOOKED_AT}


@pytest.mark.parametrize(("cls", "name"), [*core.rows((torchpipe.torchdata, CLASSES))])
def test_it_counts(cls: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for table, entries in ((core.OF_CLASS, OF_CLASS), (core.OTHERS, OTHERS)):
        for key, entry in entries.items():
            monkeypatch.setitem(table, key, entry)
    core.test_it_counts(cls, name)
