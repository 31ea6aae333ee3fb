"""What makes actors large is told where it is pickled, as of worker processes."""

from __future__ import annotations

import pytest

from reading_services import RayWorkers
from reading_services.images import image_of
from tests.services.test_large_graphs import NAMES, held_by_a_function
from torchpipe.errors import LargeGraphWarning
from torchpipe.node.traits import walk

SAYS = r"^1[0-9.]+ MB are sent to a Ray actor, to each a copy of its own: most of it may be `fn\.splits\['train'\]` of "


def test_L7_a_large_graph_is_told() -> None:
    graph = held_by_a_function(NAMES)
    with pytest.warns(LargeGraphWarning, match=SAYS + ".*torchpipe.shared_list"):
        image_of(RayWorkers().image, walk(graph), (graph,), to="a Ray actor")
