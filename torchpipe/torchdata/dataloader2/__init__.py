"""``torchdata.dataloader2``: the loader, its adapters, and the services that run it; each is imported when it is first
asked for."""

from typing import TYPE_CHECKING

from torchpipe.on_demand import on_demand

if TYPE_CHECKING:
    from reading_services.distributed import DistributedReadingService
    from reading_services.multiprocessing import MultiProcessingReadingService
    from reading_services.sequential import SequentialReadingService
    from torchpipe.execution.reading_service import InProcessReadingService, ReadingServiceInterface
    from torchpipe.loader.dataloader2 import DataLoader2, DataLoader2Iterator
    from torchpipe.torchdata.dataloader2.adapter import CacheTimeout, Shuffle
else:
    __getattr__, __dir__ = on_demand(__name__)

__all__ = [
    "CacheTimeout",
    "DataLoader2",
    "DataLoader2Iterator",
    "DistributedReadingService",
    "InProcessReadingService",
    "MultiProcessingReadingService",
    "ReadingServiceInterface",
    "SequentialReadingService",
    "Shuffle",
]
