"""Conformance kits: the checks that torchpipe's own nodes and services pass, for anybody's nodes and services."""

from torchpipe.testing.compare import Frozen, freeze
from torchpipe.testing.fakes import CountingSource, FakeBackend, Pulls
from torchpipe.testing.nodes import check_node
from torchpipe.testing.services import check_reading_service, sample_graph

__all__ = [
    "CountingSource",
    "FakeBackend",
    "Frozen",
    "Pulls",
    "check_node",
    "check_reading_service",
    "freeze",
    "sample_graph",
]
