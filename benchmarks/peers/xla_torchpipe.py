"""torchpipe with the source in one worker and ``device="xla"``, at its default of two batches ahead. For P8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper

__all__ = ["Loader"]


class Loader:
    def __init__(self, source: Any) -> None:
        service = MultiProcessingReadingService(num_workers=1, device="xla")
        self.loader: DataLoader2[Any] = DataLoader2(IterableWrapper(source, deepcopy=False), reading_service=service)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def close(self) -> None:
        self.loader.shutdown()
