"""What code that was written for torch's loader or StatefulDataLoader does with a loader, done with ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torch.utils.data import IterDataPipe as TorchIterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper as TorchIterableWrapper

from torchpipe import DataLoader
from torchpipe.errors import ReplicatedSourceWarning


class Numbers(Dataset[int]):
    def __init__(self, length: int = 24) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Counting(Numbers):
    """A dataset whose samples depend on how many its process has read; its state says how many."""

    read = 0

    def __getitem__(self, index: int) -> int:
        self.read += 1
        return 1000 * index + self.read

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


class Noisy(Numbers):
    def __getitem__(self, index: int) -> Any:
        return torch.rand(())


class Epochs(IterableDataset[Any]):
    """It counts its passes; the state says how many, and where in one it is."""

    def __init__(self) -> None:
        self.passes = 0
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        worker = getattr(get_worker_info(), "id", 0)
        while self.at < 6:
            self.at += 1
            yield [worker, self.passes, self.at, os.getpid()]
        self.at = 0
        self.passes += 1

    def state_dict(self) -> dict[str, int]:
        return {"passes": self.passes, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.passes, self.at = state["passes"], state["at"]


def as_it_is(batch: Any) -> Any:
    return batch


def plain(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("seeding", ["batch", "torch"])
@pytest.mark.parametrize("delivered", [1, 4, 7])
def test_workers_with_states_of_their_own_go_on(delivered: int, seeding: Any) -> None:
    """Also where their last snapshot is some batches old: they are dealt those batches again."""

    def made() -> DataLoader[int]:
        return DataLoader(Counting(), batch_size=2, num_workers=2, prefetch_factor=4, worker_seeding=seeding)

    with made() as loader:
        stream = iter(loader)
        for _ in range(delivered):
            next(stream)
        state, rest = loader.state_dict(), plain(stream)
    with made() as other:
        other.load_state_dict(state)
        stream = iter(other)
        assert next(stream).tolist() == rest[0]
        again = other.state_dict()
        assert plain(stream) == rest[1:]
    with made() as third:
        third.load_state_dict(again)
        assert plain(third) == rest[1:]


def test_a_datasets_state_in_process_outlives_the_epochs_end() -> None:
    loader: DataLoader[int] = DataLoader(Counting(), batch_size=2)
    list(loader)
    state, second = loader.state_dict(), plain(loader)
    other: DataLoader[int] = DataLoader(Counting(), batch_size=2)
    other.load_state_dict(state)
    assert plain(other) == second


def test_workers_of_an_iterable_dataset_persist() -> None:
    with DataLoader(Epochs(), num_workers=2, persistent_workers=True, collate_fn=as_it_is) as loader:
        first, second = list(loader), list(loader)
        assert {item[0][3] for item in first} == {item[0][3] for item in second} == set(loader_pids(loader))
        assert {item[0][1] for item in second} == {1}  # it is the dataset of the epoch before
    with DataLoader(Epochs(), num_workers=2, collate_fn=as_it_is) as loader:
        first, second = list(loader), list(loader)
        assert not {item[0][3] for item in first} & {item[0][3] for item in second}
        assert {item[0][1] for item in second} == {0}


def loader_pids(loader: DataLoader[Any]) -> list[int]:
    return [process.pid for process in loader._pool.processes]


def test_persisting_workers_of_an_iterable_dataset_are_those_of_a_state() -> None:
    def made() -> DataLoader[Any]:
        return DataLoader(Epochs(), batch_size=2, num_workers=2, persistent_workers=True, collate_fn=without_pid)

    with made() as loader:
        list(loader)
        stream = iter(loader)
        for _ in range(2):  # one of each worker: before, a state knows nothing of its dataset
            next(stream)
        state, rest = loader.state_dict(), list(stream)
        loader.load_state_dict(state)
        assert list(loader) == rest
    with made() as other:
        other.load_state_dict(state)
        assert list(other) == rest
        assert other.epoch == 2


class OwnIterator(IterableDataset[int]):
    """It is its own iterator: a pass begins where the last one has stopped."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at == 6:
            raise StopIteration
        self.at += 1
        return self.at + 10 * int(torch.randint(1000, ()))

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "random": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]
        torch.set_rng_state(state["random"])


def test_a_state_from_before_the_first_batch_puts_a_dataset_back_that_has_been_used_up() -> None:
    dataset = OwnIterator()
    loader = DataLoader(dataset, batch_size=2)
    stream = iter(loader)
    state, expected = loader.state_dict(), plain(stream)
    assert [number % 10 for batch in expected for number in batch] == [1, 2, 3, 4, 5, 6]
    loader.load_state_dict(state)
    stream = iter(loader)
    assert next(stream).tolist() == expected[0]
    state = loader.state_dict()
    assert plain(stream) == expected[1:]
    other = DataLoader(dataset, batch_size=2)
    other.load_state_dict(state)
    assert plain(other) == expected[1:]


def without_pid(batch: list[Any]) -> list[Any]:
    return [item[:3] for item in batch]


def test_the_epoch_after_a_state_at_the_end_has_the_same_randomness_with_persisting_workers() -> None:
    """torch draws no base seed for it: the state has the one that goes on."""

    def made() -> DataLoader[Any]:
        return DataLoader(Noisy(), batch_size=4, num_workers=2, persistent_workers=True)

    with made() as loader:
        list(loader)
        state, second = loader.state_dict(), plain(loader)
    with made() as other:
        other.load_state_dict(state)
        assert plain(other) == second


@pytest.mark.parametrize("workers", [1, 2])
def test_the_workers_of_an_iterator_can_be_asked_when_it_is_gone(workers: int) -> None:
    stream = iter(DataLoader(Numbers(), num_workers=workers))
    processes = stream._workers
    next(stream)
    assert all(process.is_alive() for process in processes)
    del stream
    for process in processes:
        process.join(60)
        assert not process.is_alive()
        assert process.exitcode is not None
        assert process.pid


@pytest.mark.parametrize("end", ["the iterator's method", "setting it to None"])
def test_tools_can_end_the_workers_that_persist(end: str) -> None:
    loader = DataLoader(Numbers(), batch_size=8, num_workers=1, persistent_workers=True)
    assert loader._iterator is None
    first = plain(loader)
    kept = loader._iterator
    processes = kept._workers
    assert processes[0].is_alive()
    if end == "setting it to None":
        loader._iterator = None
    else:
        kept._shutdown_workers()
    assert processes[0].exitcode is not None
    assert loader._iterator is None
    stream = iter(loader)
    assert loader._iterator is stream
    assert [*map(torch.Tensor.tolist, stream)] == first
    assert stream._workers[0].pid != processes[0].pid  # also when it is over
    loader.shutdown()
    plain_loader = DataLoader(Numbers(), num_workers=1)
    assert plain_loader._iterator is None
    for _ in plain_loader:
        assert plain_loader._iterator is None


def test_enumerate_goes_on_counting_after_a_resume() -> None:
    def made(**more: Any) -> DataLoader[int]:
        return DataLoader(Numbers(), batch_size=4, **more)

    loader = made()
    for number, _ in loader.enumerate():
        if number == 2:
            break
    state = loader.state_dict()
    other = made()
    other.load_state_dict(state)
    assert [(number, batch.tolist()[0]) for number, batch in other.enumerate()] == [(3, 12), (4, 16), (5, 20)]
    assert [number for number, _ in other.enumerate(start=100)] == [*range(100, 106)]
    other.load_state_dict(other.state_dict())  # at an epoch's end
    assert [number for number, _ in other.enumerate()] == [*range(6)]
    with made(num_workers=2, in_order=False) as loader:
        stream = iter(loader)
        for _ in range(3):
            next(stream)
        state = loader.state_dict()
        del stream
    other.load_state_dict(state)
    assert [number for number, _ in other.enumerate()] == [3, 4, 5]


class Seeds(Numbers):
    def __getitem__(self, index: int) -> int:
        return torch.initial_seed()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_may_return_its_initial_seed(workers: int) -> None:
    """torch's are never above 63 bits, and fit a tensor."""
    seeds = torch.cat(list(DataLoader(Seeds(), batch_size=2, num_workers=workers)))
    assert len(set(seeds.tolist())) == 12


@pytest.mark.parametrize("workers", [0, 2])
def test_the_seed_alone_decides_the_order_of_torchs_graphs(workers: int) -> None:
    graph = TorchIterableWrapper(range(40)).shuffle(buffer_size=20).sharding_filter()
    orders = []
    with DataLoader(graph, shuffle=True, num_workers=workers, persistent_workers=workers > 0) as loader:
        for seed in (1, 7, 7, 8):
            torch.manual_seed(seed)
            orders.append([int(batch) for batch in loader])
    assert all(sorted(order) == list(range(40)) for order in orders)
    assert orders[1] == orders[2]
    assert orders[2] != orders[3]


class DividingItself(TorchIterDataPipe[int]):
    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        for number, item in enumerate(self.source):
            if number % info.num_workers == info.id:
                yield item


def test_a_graph_of_torchs_that_no_node_of_torchs_divides_gives_what_it_gives_with_torchs_loader() -> None:
    graph = TorchIterableWrapper(range(10)).map(str)
    expected = list(TorchDataLoader(graph, batch_size=4, num_workers=2))
    with pytest.warns(ReplicatedSourceWarning, match="each of 2 workers"):
        assert list(DataLoader(graph, batch_size=4, num_workers=2)) == expected
    graph = DividingItself(TorchIterableWrapper(range(40)).shuffle(buffer_size=20))
    with pytest.warns(ReplicatedSourceWarning, match="unless a node of it divides"):
        loader = DataLoader(graph, batch_size=4, num_workers=2)
        first = [number for batch in plain(loader) for number in batch]
    assert sorted(first) == [*range(40)] != first


@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplicatedSourceWarning")
def test_it_resumes() -> None:
    def made() -> DataLoader[int]:
        return DataLoader(DividingItself(TorchIterableWrapper(range(40)).shuffle()), batch_size=4, num_workers=2)

    with made() as loader:
        stream = iter(loader)
        for _ in range(3):
            next(stream)
        state, rest = loader.state_dict(), plain(stream)
    with made() as other:
        other.load_state_dict(state)
        assert plain(other) == rest
