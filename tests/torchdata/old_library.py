"""Written as for torchdata 0.7, of whose modules it has all its imports; tests call ``main`` after ``install()``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torchdata.datapipes as dp
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from torch.utils.data.graph_settings import get_all_graph_pipes
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService, ReadingServiceInterface
from torchdata.dataloader2.adapter import Shuffle
from torchdata.dataloader2.graph import DataPipe, find_dps, list_dps, replace_dp, traverse_dps
from torchdata.dataloader2.graph.settings import set_graph_random_seed
from torchdata.dataloader2.linter import _check_shuffle_before_sharding
from torchdata.dataloader2.random import SeedGenerator
from torchdata.dataloader2.reading_service import InProcessReadingService
from torchdata.dataloader2.utils import WorkerInfo
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe, Mapper, SampleMultiplexer
from torchdata.datapipes.map import SequenceWrapper
from torchdata.datapipes.utils import StreamWrapper


@dp.functional_datapipe("of_an_old_library")
class Scaled(IterDataPipe):
    """Walks its graph when it is made."""

    def __init__(self, source: IterDataPipe, factor: int) -> None:
        self.source = source
        self.factor = factor
        self.before = len(get_all_graph_pipes(torch.utils.data.graph.traverse_dps(source)))

    def __iter__(self) -> Iterator[int]:
        for number in self.source:
            yield self.factor * number


def jittered(number: int) -> tuple[int, float]:
    return number, float(torch.rand(()))


def told(datapipe: DataPipe, info: WorkerInfo) -> DataPipe:
    assert 0 <= info.worker_id < info.num_workers
    return datapipe


def made() -> IterDataPipe:
    numbers = IterableWrapper(range(20)).shuffle().sharding_filter(SHARDING_PRIORITIES.MULTIPROCESSING)
    mixed = SampleMultiplexer({numbers: 0.5, IterableWrapper(range(100, 120)).sharding_filter(): 0.5})
    return mixed.of_an_old_library(3).map(jittered).batch(3)


def loader(method: str) -> DataLoader2:
    service: ReadingServiceInterface = InProcessReadingService()
    if method != "in process":
        service = MultiProcessingReadingService(2, multiprocessing_context=method, worker_init_fn=told)
    found = DataLoader2(made(), datapipe_adapter_fn=Shuffle(True), reading_service=service)
    found.seed(3)
    return found


def changed() -> list[Any]:
    graph = set_graph_random_seed(SequenceWrapper(range(4)).to_iter_datapipe().map(str), SeedGenerator(1))
    nodes = traverse_dps(graph)
    assert [type(node).__name__ for node in find_dps(nodes, Mapper)] == ["Mapper"]
    assert len(list_dps(nodes)) == 3
    replace_dp(nodes, next(iter(nodes.values()))[0], graph.enumerate())
    return list(graph)


def main(method: str) -> None:
    assert _check_shuffle_before_sharding(IterableWrapper([1]).shuffle().sharding_filter())
    assert changed() == ["0", "1", "2", "3"]
    assert StreamWrapper is not None
    first = loader(method)
    epochs = [list(first), list(first)]
    assert epochs[0] != epochs[1]
    assert sorted(number for batch in epochs[0] for number, _ in batch) == sorted(
        3 * number for number in (*range(20), *range(100, 120))
    )
    first.shutdown()

    stopped = loader(method)
    batches = iter(stopped)
    head = [next(batches) for _ in range(5)]
    state = stopped.state_dict()
    stopped.shutdown()
    resumed = loader(method)
    resumed.load_state_dict(state)
    assert head + list(resumed) == epochs[0]
    assert list(resumed) == epochs[1]  # and another epoch
    resumed.shutdown()
    print("exact")
