"""Map-style nodes, which are read by key."""

from torchpipe.datapipe import MapDataPipe, functional_datapipe
from torchpipe.map.mapper import Mapper
from torchpipe.map.sequence_wrapper import SequenceWrapper
from torchpipe.map.shuffler import Shuffler

__all__ = ["MapDataPipe", "Mapper", "SequenceWrapper", "Shuffler", "functional_datapipe"]
