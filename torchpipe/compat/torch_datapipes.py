"""torch's data pipes, which torch has deprecated: all that is used of them is imported here. Runs in every process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import IterDataPipe as TorchIterDataPipe
from torch.utils.data import MapDataPipe as TorchMapDataPipe
from torch.utils.data.datapipes.datapipe import DataChunk
from torch.utils.data.datapipes.iter.combining import _ContainerTemplate
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from torch.utils.data.datapipes.utils.common import StreamWrapper

__all__ = [
    "NOTED_IN_NODES",
    "SHARDING_PRIORITIES",
    "DataChunk",
    "StreamWrapper",
    "TorchIterDataPipe",
    "TorchMapDataPipe",
    "TorchMeta",
    "is_several_outputs",
]

if TYPE_CHECKING:  # with a metaclass that they do not know, checkers take every node for Any
    from torch.utils.data.datapipes._typing import _IterDataPipeMeta as TorchMeta
else:
    TorchMeta = type(TorchIterDataPipe)

NOTED_IN_NODES = ("_valid_iterator_id", "_number_of_samples_yielded", "_snapshot_state", "_fast_forward_iterator")
"""Attributes in which torch's classes note that a node is being iterated: they say nothing about its stream."""


def is_several_outputs(node: Any) -> bool:
    """True if ``node`` stands behind one of torch's outputs of fork() and the like: these share one position."""
    return isinstance(node, _ContainerTemplate)
