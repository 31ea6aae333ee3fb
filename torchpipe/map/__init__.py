"""Map-style nodes, which are read by key; each is imported when it is first asked for."""

from typing import TYPE_CHECKING

from torchpipe.node.datapipe import MapDataPipe, functional_datapipe
from torchpipe.on_demand import on_demand

if TYPE_CHECKING:
    from torchpipe.map.batcher import Batcher
    from torchpipe.map.concater import Concater
    from torchpipe.map.in_memory_cache import InMemoryCacheHolder
    from torchpipe.map.iter_to_map import IterToMapConverter
    from torchpipe.map.mapper import Mapper
    from torchpipe.map.mds_file import MDSFile
    from torchpipe.map.sequence_wrapper import SequenceWrapper
    from torchpipe.map.shuffler import Shuffler
    from torchpipe.map.tfrecord_file import TFRecordFile
    from torchpipe.map.token_file import TokenFile
    from torchpipe.map.unzipper import UnZipper
    from torchpipe.map.zipper import Zipper
else:
    __getattr__, __dir__ = on_demand(__name__)

__all__ = [
    "Batcher",
    "Concater",
    "InMemoryCacheHolder",
    "IterToMapConverter",
    "MDSFile",
    "MapDataPipe",
    "Mapper",
    "SequenceWrapper",
    "Shuffler",
    "TFRecordFile",
    "TokenFile",
    "UnZipper",
    "Zipper",
    "functional_datapipe",
]
