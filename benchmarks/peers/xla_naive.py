"""No loader: each batch is read and moved when it is needed. For P8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch_xla

__all__ = ["Loader"]


class Loader:
    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        device = torch_xla.device()
        for batch in self.source:
            yield batch.to(device)

    def close(self) -> None:
        pass
