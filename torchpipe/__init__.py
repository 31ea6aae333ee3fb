"""torchpipe: declarative data pipelines for PyTorch and XLA that survive crashes and resume exactly.

Describe a pipeline as a graph of nodes (``torchpipe.iter``, ``torchpipe.map``), hand it to :class:`DataLoader2` with a
reading service that decides where it runs (``reading_services``), and iterate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchpipe import errors, state
from torchpipe.node.datapipe import IterDataPipe, MapDataPipe, functional_datapipe, iterate
from torchpipe.node.iterator import NodeIterator
from torchpipe.on_demand import on_demand
from torchpipe.randomness.global_random import own_random_states

if TYPE_CHECKING:
    from torchpipe import graph, iter, map  # noqa: F401
    from torchpipe.data.loader import DataLoader
    from torchpipe.execution.reading_service import InProcessReadingService
    from torchpipe.loader.dataloader2 import DataLoader2
    from torchpipe.observe.profiling import profile
    from torchpipe.state.shared_list import shared_list
    from torchpipe.writing.write import write_shards
else:
    __getattr__, __dir__ = on_demand(__name__)

__version__ = "0.1.0"

# Without ``iter`` and ``map``: a star import must not take the builtins' names.
__all__ = [
    "DataLoader",
    "DataLoader2",
    "InProcessReadingService",
    "IterDataPipe",
    "MapDataPipe",
    "NodeIterator",
    "errors",
    "functional_datapipe",
    "graph",
    "iterate",
    "own_random_states",
    "profile",
    "shared_list",
    "state",
    "write_shards",
]
