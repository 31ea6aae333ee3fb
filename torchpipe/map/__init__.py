"""Map-style nodes, which are read by key; each is imported when it is first asked for.

Written by ``make stubs`` from ``__all__`` of the package's modules: do not edit.
"""

from typing import TYPE_CHECKING

from torchpipe.node.datapipe import MapDataPipe, functional_datapipe
from torchpipe.on_demand import on_demand

if TYPE_CHECKING:
    from torchpipe.map.files import MDSFile, TFRecordFile
    from torchpipe.map.items import Batcher, Concater, InMemoryCacheHolder, Mapper, Shuffler, UnZipper, Zipper
    from torchpipe.map.sources import IterToMapConverter, SequenceWrapper
    from torchpipe.map.tokens import TokenFile
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
