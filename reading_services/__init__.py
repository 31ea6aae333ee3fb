"""Reading services: where a torchpipe graph runs. In-process execution is in ``torchpipe`` itself."""

from __future__ import annotations

from reading_services.multiprocessing import MultiProcessingReadingService
from torchpipe.reading_service import InProcessReadingService, ReadingServiceInterface

__all__ = ["InProcessReadingService", "MultiProcessingReadingService", "ReadingServiceInterface"]
