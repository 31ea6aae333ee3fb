"""``torchdata.datapipes``: nodes by their kind, and what is common to them."""

from torchpipe.node.datapipe import DataChunk, functional_datapipe
from torchpipe.torchdata.datapipes import iter, map, utils

__all__ = ["DataChunk", "functional_datapipe", "iter", "map", "utils"]
