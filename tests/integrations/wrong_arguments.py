"""Wrong arguments of what works with other libraries' loaders."""

from __future__ import annotations

from functools import partial

from tests.wrong_arguments.of_services import graph
from tests.wrong_arguments.rows import Row, calls
from torchpipe.integrations.torch_loaders import GraphDataset
from torchpipe.integrations.torchdata_nodes import LoaderNode, NodesReader

__all__ = ["ROWS"]

ROWS: list[Row] = [
    *calls(
        "GraphDataset",
        partial(GraphDataset, graph()),
        ({"rank": 1}, ValueError, "world_size"),
        ({"rank": 2, "world_size": 2}, ValueError, "rank"),
    ),
    ("GraphDataset: datapipe", lambda: GraphDataset([1]), TypeError, "datapipe"),  # type: ignore[arg-type]
    ("LoaderNode: loader", lambda: LoaderNode([1]), TypeError, "DataLoader2"),  # type: ignore[arg-type]
    ("NodesReader: make", lambda: NodesReader(3), TypeError, "make"),  # type: ignore[arg-type]
]
