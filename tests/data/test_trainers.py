"""What trainers do with a loader: they look at it, mark it, copy it, and make it again from its arguments."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

from tests.data.datasets import Augmented, Lines, StatefulSampler
from tests.exact import exact
from torchpipe import DataLoader


def made_again(loader: DataLoader[int], **other: object) -> DataLoader[int]:
    """As Lightning does: from the attributes that have the names of the constructor's arguments."""
    names = inspect.signature(type(loader).__init__).parameters
    arguments = {name: value for name, value in vars(loader).items() if name in names}
    if type(loader.batch_sampler) is BatchSampler:  # it belongs to the batch size
        del arguments["batch_sampler"]
    return type(loader)(**(arguments | other))


@pytest.mark.parametrize("ends", [{"drop_last": True}, {"last_batch": "keep"}, {"last_batch": "discard"}], ids=str)
def test_made_again_from_its_attributes_it_is_the_same(ends: dict[str, Any]) -> None:
    loader = DataLoader(range(20), batch_size=3, worker_seeding="torch", on_worker_death="raise", **ends)
    again = made_again(loader)
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in loader]
    for name in inspect.signature(DataLoader.__init__).parameters.keys() - {"self", "sampler", "batch_sampler"}:
        assert name == "shuffle" or getattr(again, name) == getattr(loader, name), name


def test_made_again_with_a_sampler_for_ranks_it_divides() -> None:
    loader = DataLoader(range(20), batch_size=3, shuffle=True)
    ranks = [made_again(loader, sampler=DistributedSampler(range(20), 2, rank)) for rank in range(2)]  # type: ignore[arg-type]
    assert sorted(number for part in ranks for batch in part for number in batch.tolist()) == list(range(20))


def test_accelerate_takes_it_as_it_is() -> None:
    loader = DataLoader(range(20), batch_size=3)
    assert getattr(loader, "_is_accelerate_prepared", False)
    loader._is_accelerate_prepared = True  # which it does with what it has taken


def test_a_copy_goes_on_from_where_the_loader_was_told_to() -> None:
    loader = DataLoader(range(20), batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(3))
    stream = iter(loader)
    next(stream)
    state = loader.state_dict()
    rest = [batch.tolist() for batch in stream]
    loader.load_state_dict(state)
    other = pickle.loads(pickle.dumps(loader))
    assert [batch.tolist() for batch in other] == rest
    assert [batch.tolist() for batch in loader] == rest


def test_the_sampler_can_be_told_the_epoch_through_the_loader() -> None:
    sampler: DistributedSampler[int] = DistributedSampler(range(20), 1, 0)  # type: ignore[arg-type]
    loader = DataLoader(range(20), batch_size=3, sampler=sampler)
    loader.set_epoch(5)
    assert sampler.epoch == 5
    assert loader.epoch == 5
    assert isinstance(made_again(DataLoader(range(4), batch_size=2)).sampler, SequentialSampler)


class Endless(DataLoader[Any]):
    """As ultralytics makes it: one iterator for all epochs, and a fresh one by ``reset()``."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.iterator = self._get_iterator()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for _ in range(3):
            yield next(self.iterator)

    def reset(self) -> None:
        self.iterator = self._get_iterator()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_subclass_with_an_iter_of_its_own_gets_its_iterators_by_torch_s_name(num_workers: int) -> None:
    with Endless(range(12), batch_size=2, num_workers=num_workers) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
        if num_workers:
            os.kill(loader.worker_pids()[0], signal.SIGKILL)
        assert [batch.tolist() for batch in loader] == [[6, 7], [8, 9], [10, 11]]
        loader.reset()
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
        state = loader.state_dict()
    with Endless(range(12), batch_size=2, num_workers=2 - num_workers) as again:
        again.load_state_dict(state)
        again.reset()
        assert [batch.tolist() for batch in again] == [[6, 7], [8, 9], [10, 11]]


def test_a_subclass_may_wrap_the_iterator_by_torch_s_name() -> None:
    class Wrapped(DataLoader[Any]):
        def _get_iterator(self) -> Any:
            return map(torch.Tensor.tolist, super()._get_iterator())

    assert list(Wrapped(range(4), batch_size=2)) == [[0, 1], [2, 3]]


def pickled(loader: Any) -> Any:
    return pickle.loads(pickle.dumps(loader))


WAYS = pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickled])
COPIED: dict[str, Callable[[], DataLoader[Any]]] = {
    "shuffled": lambda: DataLoader(Augmented(20), 3, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "workers": lambda: DataLoader(
        Augmented(20), 3, shuffle=True, generator=torch.Generator().manual_seed(3), num_workers=2
    ),
    "persistent workers": lambda: DataLoader(
        Augmented(20), 3, shuffle=True, generator=torch.Generator().manual_seed(3), num_workers=2,
        persistent_workers=True,
    ),
    "a sampler with a state": lambda: DataLoader(
        Augmented(20), 3, sampler=StatefulSampler(20), generator=torch.Generator().manual_seed(3)
    ),
    "iterable": lambda: DataLoader(Lines(20), 3, generator=torch.Generator().manual_seed(3)),
    "on a device": lambda: DataLoader(
        Augmented(20), 3, shuffle=True, generator=torch.Generator().manual_seed(3), device="cpu"
    ),
}  # fmt: skip


def epochs_of(loader: Any, number: int = 2) -> str:
    return exact([list(loader) for _ in range(number)])


@WAYS
@pytest.mark.parametrize("name", COPIED)
def test_a_copy_is_a_loader_of_its_own(way: Callable[[Any], Any], name: str) -> None:
    with COPIED[name]() as plain:
        expected = epochs_of(plain)
    with COPIED[name]() as loader, way(loader) as other:
        assert other.generator is not loader.generator
        assert (other.dataset is loader.dataset) == (way is copy.copy)
        assert epochs_of(other) == expected
        assert epochs_of(loader) == expected


@pytest.mark.nightly
@WAYS
@pytest.mark.parametrize("name", ["shuffled", "workers", "a sampler with a state"])
def test_a_loader_that_was_iterated_is_copied_once_its_state_is_loaded(way: Callable[[Any], Any], name: str) -> None:
    with COPIED[name]() as loader:
        for stop in (1, 3, 7):
            stream = iter(loader)
            got = list(islice(stream, stop))
            with pytest.raises(TypeError, match=r"load_state_dict\(loader\.state_dict\(\)\)"):
                way(loader)
            with pytest.raises(TypeError, match="cannot be pickled or copied.*made from the same arguments"):
                way(stream)
            del stream, got
            with pytest.raises(TypeError, match="has been iterated cannot be pickled or copied"):
                way(loader)
            loader.load_state_dict(loader.state_dict())
            with way(loader) as other:
                expected = epochs_of(loader)
                assert epochs_of(other) == expected
            loader.load_state_dict({})
