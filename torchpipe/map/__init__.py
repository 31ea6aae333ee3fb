"""Map-style nodes, which are read by key."""

from typing import TYPE_CHECKING

from torchpipe.map.mapper import Mapper
from torchpipe.map.sequence_wrapper import SequenceWrapper
from torchpipe.map.shuffler import Shuffler
from torchpipe.map.token_file import TokenFile
from torchpipe.node.datapipe import MapDataPipe, functional_datapipe
from torchpipe.node.not_ported import module_getattr

if not TYPE_CHECKING:  # checkers would take every name for an attribute
    __getattr__ = module_getattr(__name__, "map")

__all__ = [
    "MapDataPipe",
    "Mapper",
    "SequenceWrapper",
    "Shuffler",
    "TokenFile",
    "functional_datapipe",
]
