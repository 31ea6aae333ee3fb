"""Reading services: where a torchpipe graph runs. In-process execution is in ``torchpipe`` itself."""

from __future__ import annotations

from reading_services.distributed import DistributedReadingService
from reading_services.multiprocessing import MultiProcessingReadingService
from reading_services.ordinal import OrdinalReadingService
from reading_services.sequential import SequentialReadingService
from torchpipe.execution.preparing import PreparingReadingService
from torchpipe.execution.reading_service import InProcessReadingService, ReadingServiceInterface
from torchpipe.stats.service import ServiceStats

__all__ = [
    "DistributedReadingService",
    "InProcessReadingService",
    "MultiProcessingReadingService",
    "OrdinalReadingService",
    "PreparingReadingService",
    "ReadingServiceInterface",
    "SequentialReadingService",
    "ServiceStats",
]
