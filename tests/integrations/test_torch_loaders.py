"""``GraphDataset``: exact positions under torch's and torchdata's loaders, in process and in their workers."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from torchpipe import IterDataPipe
from torchpipe.errors import GraphError, StateError
from torchpipe.integrations.torch_loaders import GraphDataset
from torchpipe.iter import IterableWrapper

ITEMS = 24


def augmented(item: int, generator: Any) -> tuple[int, float]:
    return item, float(generator.random())


def noisy(pair: tuple[int, float]) -> list[float]:
    return [*pair, random.random() + float(np.random.rand()) + float(torch.rand(()))]


def graph(count: int = ITEMS) -> IterDataPipe[Any]:
    """Random in every way there is."""
    return IterableWrapper(range(count)).shuffle(buffer_size=7).sharding_filter().random_map(augmented).map(noisy)


def unsized() -> IterDataPipe[Any]:
    return graph().filter(lambda row: row[0] % 3 > 0)


def plain(batch: Any) -> Any:
    if isinstance(batch, list):
        return [plain(part) for part in batch]
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def make(node: IterDataPipe[Any], workers: int, **options: Any) -> StatefulDataLoader[Any]:
    return StatefulDataLoader(GraphDataset(node, **options), batch_size=3, num_workers=workers)


@pytest.mark.parametrize("node", [graph, unsized])
def test_L2_stateful_dataloader_in_process_resumes_exactly_at_every_batch(node: Any) -> None:
    torch.manual_seed(3)
    loader = make(node(), 0)
    states, batches = [], []
    for batch in loader:
        batches.append(plain(batch))
        states.append(copy.deepcopy(loader.state_dict()))
    for position, state in enumerate(states, 1):
        torch.manual_seed(99)
        again = make(node(), 0)
        again.load_state_dict(state)
        rest = [plain(batch) for batch in again]
        assert rest == batches[position:], position


def test_L2_stateful_dataloader_with_workers_resumes_exactly_and_again() -> None:
    torch.manual_seed(3)
    loader = make(graph(), 2)
    batches, states = [], {}
    for number, batch in enumerate(loader, 1):
        batches.append(plain(batch))
        if number in (3, 8):
            states[number] = copy.deepcopy(loader.state_dict())
    assert sorted(int(item) for batch in batches for item in batch[0]) == list(range(ITEMS))
    again = make(graph(), 2)
    again.load_state_dict(states[3])
    stream = iter(again)
    got = [plain(next(stream)) for _ in range(2)]
    later = copy.deepcopy(again.state_dict())
    del stream
    assert got == batches[3:5]
    third = make(graph(), 2)
    third.load_state_dict(later)
    assert [plain(batch) for batch in third] == batches[5:]
    fourth = make(graph(), 2)
    fourth.load_state_dict(states[8])
    assert [plain(batch) for batch in fourth] == []


def test_L1_epochs_differ_and_are_torchs_seeds() -> None:
    def epochs(workers: int) -> list[Any]:
        torch.manual_seed(5)
        loader = DataLoader(GraphDataset(graph()), batch_size=None, num_workers=workers)
        return [[plain(row) for row in loader] for _ in range(2)]

    first, second = epochs(0)
    assert first != second
    assert epochs(0) == [first, second]
    first, second = epochs(2)
    for epoch in (first, second):
        assert sorted(row[0] for row in epoch) == list(range(ITEMS))
    assert first != second


def test_L1_with_a_seed_the_epoch_is_told() -> None:
    dataset: GraphDataset[Any] = GraphDataset(graph(), seed=1)
    loader = DataLoader(dataset, batch_size=None)
    first, second = ([plain(row) for row in loader] for _ in range(2))
    assert first != second
    dataset.set_epoch(0)
    assert [plain(row) for row in loader] == first
    in_worker = DataLoader(dataset, batch_size=None, num_workers=1)
    dataset.set_epoch(1)
    assert [plain(row) for row in in_worker] == second


def test_L2_torchs_loader_in_process_is_saved_and_restored() -> None:
    dataset: GraphDataset[Any] = GraphDataset(graph())
    loader = DataLoader(dataset, batch_size=4)
    stream = iter(loader)
    for _ in range(2):
        next(stream)
    state = dataset.save()
    expected = [plain(batch) for batch in stream]
    again: GraphDataset[Any] = GraphDataset(graph())
    again.restore(state)
    assert [plain(batch) for batch in DataLoader(again, batch_size=4)] == expected


def test_L2_passes_after_a_restore_are_those_that_would_have_followed() -> None:
    """Restored at every batch of an epoch, and when its loop is over; their count and their epochs are right."""

    def rows(dataset: GraphDataset[Any]) -> list[Any]:
        return [plain(batch) for batch in DataLoader(dataset, batch_size=5)]

    dataset: GraphDataset[Any] = GraphDataset(unsized(), seed=3)
    whole = [rows(dataset) for _ in range(4)]
    dataset.set_epoch(1)
    states = []
    for _ in DataLoader(dataset, batch_size=5):
        states.append(dataset.save())
    for position, state in enumerate(states, 1):
        again: GraphDataset[Any] = GraphDataset(unsized(), seed=3)
        again.restore(state)
        assert again.epoch == 1
        # The last batch is not full: the pass had ended before it was handed out
        assert [rows(again) for _ in range(3)] == [whole[1][position:], whole[2], whole[3]]
        again.restore(state)
        again.set_epoch(1)
        assert rows(again) == whole[1][position:]
        again.restore(state)
        again.set_epoch(2)
        assert rows(again) == whole[2]
    again = GraphDataset(unsized(), seed=3)
    again.restore(dataset.save())  # the loop is over: the next epoch follows
    assert again.epoch == 2
    assert [rows(again) for _ in range(2)] == whole[2:]


def test_ranks_divide_the_stream_too() -> None:
    shares = [
        [row[0] for row in DataLoader(GraphDataset(graph(), seed=1, rank=rank, world_size=2), batch_size=None)]
        for rank in range(2)
    ]
    assert sorted(shares[0] + shares[1]) == list(range(ITEMS))
    assert abs(len(shares[0]) - len(shares[1])) <= 1


def test_L3_what_does_not_fit_is_refused() -> None:
    loader = make(graph(), 0)
    next(iter(loader))
    state = loader.state_dict()
    other = make(graph(5).map(str), 0)
    other.load_state_dict(state)
    with pytest.raises(StateError):
        next(iter(other))
    with pytest.raises(GraphError, match="sharding_filter"):
        next(iter(GraphDataset(IterableWrapper(range(3)), seed=1, rank=0, world_size=2)))
    with pytest.raises(ValueError, match="give all ranks the same seed="):
        GraphDataset(graph(), rank=0, world_size=2)
    with pytest.raises(StateError):
        GraphDataset(graph()).restore({"epoch": 1})
    with pytest.raises(RuntimeError, match="no pass over this GraphDataset was begun in this process"):
        GraphDataset(graph()).save()


def test_L2_a_restored_position_is_saved_as_it_was_restored() -> None:
    used = GraphDataset(graph(), seed=1)
    for number, _ in enumerate(DataLoader(used, batch_size=None)):
        if number == 4:
            state = used.save()
    for dataset in (used, GraphDataset(graph(), seed=1)):
        dataset.restore(state)
        assert dataset.save() == state
        again = GraphDataset(graph(), seed=1)
        again.restore(dataset.save())
        assert len(list(again)) == len(list(dataset)) == ITEMS - 5
