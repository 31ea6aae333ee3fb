"""Reading services: where a torchpipe graph runs. In-process execution is in ``torchpipe`` itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchpipe.on_demand import on_demand

if TYPE_CHECKING:
    from reading_services.distributed import DistributedReadingService
    from reading_services.multiprocessing import MultiProcessingReadingService
    from reading_services.ordinal import OrdinalReadingService
    from reading_services.processes.start_method import PRELOADED
    from reading_services.ray import RayReadingService, RayWorkers
    from reading_services.sequential import SequentialReadingService
    from torchpipe.execution.epoch import WorkerInfo
    from torchpipe.execution.figures import ServiceStats
    from torchpipe.execution.limits import Restart
    from torchpipe.execution.preparing import PreparingReadingService
    from torchpipe.execution.reading_service import InProcessReadingService, ReadingServiceInterface
    from torchpipe.randomness.seeds import SeedGenerator
else:
    __getattr__, __dir__ = on_demand(__name__)

__all__ = [
    "PRELOADED",
    "DistributedReadingService",
    "InProcessReadingService",
    "MultiProcessingReadingService",
    "OrdinalReadingService",
    "PreparingReadingService",
    "RayReadingService",
    "RayWorkers",
    "ReadingServiceInterface",
    "Restart",
    "SeedGenerator",
    "SequentialReadingService",
    "ServiceStats",
    "WorkerInfo",
]
