"""What the peers share that run a graph of torchpipe's: a ``DataLoader2`` as the harness asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchpipe import DataLoader2

__all__ = ["GraphLoader"]


class GraphLoader:
    def __init__(self, graph: Any, service: Any = None, *, measure: bool = False) -> None:
        self.loader: DataLoader2[Any] = DataLoader2(graph, reading_service=service)
        self.loader.measuring = measure
        self.loader.seed(0)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)

    def close(self) -> None:
        self.loader.shutdown()
