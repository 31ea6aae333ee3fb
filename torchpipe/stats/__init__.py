"""The figures of a loader at work as data, and the sheets and counters that processes note them on."""

from typing import TYPE_CHECKING

from torchpipe.on_demand import on_demand

if TYPE_CHECKING:
    from torchpipe.machine import Budget
    from torchpipe.stats.model import (
        BalanceStats,
        ConsumerStats,
        CostStats,
        Event,
        FeedStats,
        LoaderStats,
        MergeStats,
        Moment,
        NodeStats,
        ProcessStats,
        QueueStats,
        StageStats,
    )
else:
    __getattr__, __dir__ = on_demand(__name__)

__all__ = [
    "BalanceStats",
    "Budget",
    "ConsumerStats",
    "CostStats",
    "Event",
    "FeedStats",
    "LoaderStats",
    "MergeStats",
    "Moment",
    "NodeStats",
    "ProcessStats",
    "QueueStats",
    "StageStats",
]
