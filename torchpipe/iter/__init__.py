"""Iterable nodes. Importing this module makes their functional forms known (``dp.map(...)``)."""

from typing import TYPE_CHECKING

from torchpipe.iter.batcher import Batcher
from torchpipe.iter.collator import Collator
from torchpipe.iter.concater import Concater
from torchpipe.iter.cycler import Cycler
from torchpipe.iter.enumerator import Enumerator
from torchpipe.iter.file_lister import FileLister
from torchpipe.iter.file_opener import FileOpener
from torchpipe.iter.filter import Filter
from torchpipe.iter.flatmapper import FlatMapper
from torchpipe.iter.header import Header
from torchpipe.iter.map_to_iter import MapToIterConverter
from torchpipe.iter.mapper import Mapper
from torchpipe.iter.prefetch import Prefetcher
from torchpipe.iter.random_mapper import RandomMapper
from torchpipe.iter.repeater import Repeater
from torchpipe.iter.sharding_filter import SHARDING_PRIORITIES, ShardingFilter, ShardingRoundRobinDispatcher
from torchpipe.iter.shuffler import Shuffler
from torchpipe.iter.tar_loader import TarArchiveLoader
from torchpipe.iter.to_device import ToDevice
from torchpipe.iter.unbatcher import UnBatcher
from torchpipe.iter.wrapper import IterableWrapper
from torchpipe.iter.zipper import Zipper
from torchpipe.node.datapipe import DataChunk, IterDataPipe, functional_datapipe
from torchpipe.node.not_ported import module_getattr

if not TYPE_CHECKING:  # checkers would take every name for an attribute
    __getattr__ = module_getattr(__name__, "iter")

__all__ = [
    "SHARDING_PRIORITIES",
    "Batcher",
    "Collator",
    "Concater",
    "Cycler",
    "DataChunk",
    "Enumerator",
    "FileLister",
    "FileOpener",
    "Filter",
    "FlatMapper",
    "Header",
    "IterDataPipe",
    "IterableWrapper",
    "MapToIterConverter",
    "Mapper",
    "Prefetcher",
    "RandomMapper",
    "Repeater",
    "ShardingFilter",
    "ShardingRoundRobinDispatcher",
    "Shuffler",
    "TarArchiveLoader",
    "ToDevice",
    "UnBatcher",
    "Zipper",
    "functional_datapipe",
]
