"""Wrong arguments of ``DataLoader2`` and its methods and of reading services."""

from __future__ import annotations

from functools import partial
from typing import Any

from reading_services import (
    DistributedReadingService,
    InProcessReadingService,
    MultiProcessingReadingService,
    PreparingReadingService,
    Restart,
    SequentialReadingService,
)
from reading_services.ranks.ordinals import ordinal
from tests.services.ranks import FixedRank
from tests.wrong_arguments.rows import Row, calls
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper

__all__ = ["ROWS"]


def graph() -> Any:
    return IterableWrapper(range(10)).sharding_filter()


def loader(**options: Any) -> Any:
    return DataLoader2(**{"datapipe": graph(), **options})


def limited(**options: Any) -> None:
    iter(loader()).limit(**options)


def one_twice() -> Any:
    service = PreparingReadingService()
    return SequentialReadingService(service, service)


WORKERS: list[Row] = calls(
    "MultiProcessingReadingService",
    MultiProcessingReadingService,
    ({"num_workers": -1}, ValueError, "num_workers"),
    *(({"num_workers": value}, TypeError, "num_workers") for value in (2.0, "2")),
    ({"multiprocessing_context": "thread"}, ValueError, "multiprocessing_context"),
    ({"num_workers": 4, "num_shards": 2}, ValueError, "num_shards"),
    ({"num_shards": 0}, ValueError, "num_shards"),
    ({"worker_prefetch_cnt": -1}, ValueError, "worker_prefetch_cnt"),
    ({"main_prefetch_cnt": None}, TypeError, "main_prefetch_cnt"),
    ({"on_worker_death": "ignore"}, ValueError, "on_worker_death"),
    ({"on_worker_death": 3}, ValueError, "on_worker_death"),
    ({"timeout": -1}, ValueError, "timeout"),
    ({"timeout": "60"}, TypeError, "timeout"),
    ({"worker_init_fn": 3}, TypeError, "worker_init_fn"),
    ({"worker_reset_fn": "f"}, TypeError, "worker_reset_fn"),
    ({"policy": 0.5}, TypeError, "policy"),
    ({"device": "gpu"}, ValueError, "device"),
    ({"device": 0}, TypeError, "device"),
)

DEATHS: list[Row] = calls(
    "Restart",
    Restart,
    ({"max_deaths": 0}, ValueError, "max_deaths"),
    ({"max_deaths": 1.5}, TypeError, "max_deaths"),
    ({"max_restarts": -1}, ValueError, "max_restarts"),
)

RANKS: list[Row] = [
    *calls(
        "DistributedReadingService",
        DistributedReadingService,
        ({"uneven": "stop"}, ValueError, "uneven"),
        ({"timeout": 0}, ValueError, "timeout"),
        ({"agree_every": 0}, ValueError, "agree_every"),
        ({"total_shards": 0}, ValueError, "total_shards"),
        ({"total_shards": True}, TypeError, "total_shards"),
        ({"states": "some"}, ValueError, "states"),
    ),
    ("SequentialReadingService: none", lambda: SequentialReadingService(), ValueError, "service"),
    ("SequentialReadingService: a text", lambda: SequentialReadingService("a"), TypeError, "services"),  # type: ignore[arg-type]
    ("SequentialReadingService: one twice", one_twice, ValueError, "service"),
    *(
        (
            f"SequentialReadingService: {first.__name__} first",
            partial(SequentialReadingService, first(), last()),
            TypeError,
            first.__name__,
        )
        for first, last in (
            (InProcessReadingService, MultiProcessingReadingService),
            (MultiProcessingReadingService, DistributedReadingService),
        )
    ),
    ("total_shards: too many", lambda: loader(reading_service=FixedRank(0, 2, 10_000)), ValueError, "total_shards"),
    (
        "total_shards: other num_shards",
        lambda: loader(
            reading_service=SequentialReadingService(FixedRank(0, 2, 4), InProcessReadingService(num_shards=3))
        ),
        ValueError,
        "total_shards",
    ),
]

LOADERS: list[Row] = [
    *calls(
        "DataLoader2",
        loader,
        ({"datapipe": [1, 2]}, TypeError, "datapipe"),
        ({"datapipe": None}, TypeError, "datapipe"),
        ({"datapipe_adapter_fn": 3}, TypeError, "datapipe_adapter_fn"),
        ({"datapipe_adapter_fn": [lambda datapipe: datapipe, 3]}, TypeError, "datapipe_adapter_fn"),
        ({"datapipe_adapter_fn": lambda datapipe: None}, TypeError, "adapter"),
        ({"reading_service": MultiProcessingReadingService}, TypeError, "reading_service"),
        ({"reading_service": 2}, TypeError, "reading_service"),
    ),
    *(("seed: seed", partial(loader().seed, value), TypeError, "seed") for value in ("x", None, True, 1.0)),
    ("seed: seed", lambda: loader().seed(-1), ValueError, "seed"),
    ("set_epoch: epoch", lambda: loader().set_epoch("x"), TypeError, "epoch"),
    ("set_epoch: epoch", lambda: loader().set_epoch(-1), ValueError, "epoch"),
    ("state_dict: states", lambda: loader().state_dict("each"), ValueError, "states"),
    *(("limit: num_batches", partial(limited, num_batches=value), ValueError, "num_batches") for value in (0, -3)),
    *(
        ("limit: num_batches", partial(limited, num_batches=value), TypeError, "num_batches")
        for value in (1.5, "2", True)
    ),
]

ORDINALS: list[Row] = [
    *(
        ("ordinal: rank", partial(ordinal, *arguments), ValueError, "rank")
        for arguments in ((1, None), (None, 2), (2, 2), (-1, 2))
    ),
]

ROWS: list[Row] = [*ORDINALS, *WORKERS, *DEATHS, *RANKS, *LOADERS]
