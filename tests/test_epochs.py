"""``loader.epoch`` tells the truth after every resume, so that the loop over epochs needs no counter of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from reading_services import DistributedReadingService, MultiProcessingReadingService, SequentialReadingService
from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.iter import IterableWrapper
from torchpipe.state import SnapshotPolicy

EPOCHS = 3
SERVICES: dict[str, Callable[[], Any]] = {
    "in process": lambda: InProcessReadingService(num_shards=2),
    "one by one": lambda: InProcessReadingService(num_shards=2, policy=lambda: SnapshotPolicy(every=1)),
    "prefetching": lambda: InProcessReadingService(2, num_shards=2),
    "workers": lambda: MultiProcessingReadingService(2),
    "no workers": lambda: MultiProcessingReadingService(0, num_shards=2),
    "in sequence": lambda: SequentialReadingService(MultiProcessingReadingService(0, num_shards=2)),
}


def sized() -> Any:
    return IterableWrapper(range(7)).shuffle().sharding_filter()


def unsized() -> Any:
    return sized().filter(lambda item: item != 2)


def make(graph: Callable[[], Any], service: Callable[[], Any]) -> DataLoader2[Any]:
    return DataLoader2(graph(), reading_service=service())


def reference(graph: Callable[[], Any]) -> list[tuple[int, Any]]:
    loader = make(graph, SERVICES["in process"])
    loader.seed(1)
    return [(epoch, item) for epoch in range(EPOCHS) for item in loader]


def states(graph: Callable[[], Any], service: Callable[[], Any]) -> list[tuple[int, bool, dict[str, Any]]]:
    """(items delivered before, whether the loop over the epoch had ended, state) at every position of a run."""
    saved: list[tuple[int, bool, dict[str, Any]]] = []
    with make(graph, service) as loader:
        loader.seed(1)
        count = 0
        saved.append((0, True, loader.state_dict()))
        while loader.epoch < EPOCHS:
            for _ in loader:
                count += 1
                saved.append((count, False, loader.state_dict()))
            saved.append((count, True, loader.state_dict()))
    return saved


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_the_loop_is_right_after_every_resume(service: Callable[[], Any]) -> None:
    expected = reference(sized)
    for count, _, state in states(sized, service):
        with make(sized, service) as loader:
            loader.load_state_dict(state)
            assert loader.epoch == (expected[count][0] if count < len(expected) else EPOCHS)
            got: list[Any] = []
            while loader.epoch < EPOCHS:
                epoch = loader.epoch
                got.extend((epoch, item) for item in loader)
            assert got == expected[count:]


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_without_a_length_the_state_tells_or_the_iterator(service: Callable[[], Any]) -> None:
    expected = reference(unsized)
    for count, ended, state in states(unsized, service):
        with make(unsized, service) as loader:
            loader.load_state_dict(state)
            if ended:
                assert loader.epoch == (expected[count][0] if count < len(expected) else EPOCHS)
            got: list[Any] = []
            while loader.epoch < EPOCHS:
                batches = iter(loader)
                for item in batches:
                    if batches.epoch == EPOCHS:
                        break
                    got.append((batches.epoch, item))
            assert got == expected[count:]


@pytest.mark.nightly
@pytest.mark.parametrize("length", [3, 6, 7, 8, 20])
@pytest.mark.parametrize("service", [SERVICES["in process"], SERVICES["one by one"], SERVICES["workers"]])
def test_no_epoch_is_said_to_be_over_because_of_a_length_that_was_set(service: Callable[[], Any], length: int) -> None:
    def estimated() -> Any:
        return sized().set_length(length)

    expected = reference(sized)
    for count, ended, state in states(estimated, service):
        with make(estimated, service) as loader:
            loader.load_state_dict(state)
            if ended or count % 7:
                assert loader.epoch == (expected[count][0] if count < len(expected) else EPOCHS)
            got: list[Any] = []
            while loader.epoch < EPOCHS:
                batches = iter(loader)
                for item in batches:
                    if batches.epoch == EPOCHS:
                        break
                    got.append((batches.epoch, item))
            assert got == expected[count:]


@pytest.mark.parametrize("service", [SERVICES["one by one"], SERVICES["workers"]])
def test_iterator_and_loader_agree_before_the_first_item(service: Callable[[], Any]) -> None:
    with make(sized, service) as loader:
        loader.seed(1)
        stream = iter(loader)
        for _ in range(7):
            next(stream)
        state = loader.state_dict()
    with make(sized, service) as loader:
        loader.load_state_dict(state)
        stream = iter(loader)
        assert (loader.epoch, stream.epoch, stream.delivered) == (1, 1, 0)
        again = loader.state_dict()
        next(stream)
        assert (loader.epoch, stream.epoch, stream.delivered) == (1, 1, 1)
    with make(sized, service) as loader:
        loader.load_state_dict(again)
        assert loader.epoch == 1
        assert [(1, item) for item in loader] == reference(sized)[7:14]


class SaysLess(IterableWrapper[int]):
    def __len__(self) -> int:
        return 3


class Fails(IterableWrapper[int]):
    def __len__(self) -> int:
        raise OSError("no index")


@pytest.mark.parametrize("kind", [SaysLess, Fails])
@pytest.mark.parametrize("service", [SERVICES["in process"], SERVICES["one by one"]])
def test_a_wrong_length_loses_no_item(kind: Any, service: Callable[[], Any]) -> None:
    def graph() -> Any:
        return kind(iter_of_five()).sharding_filter()

    for count in range(6):
        loader = make(graph, service)
        stream = iter(loader)
        for _ in range(count):
            next(stream)
        resumed = make(graph, service)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            resumed.load_state_dict(loader.state_dict())
            rest = [item for item in resumed]  # noqa: C416 (list() would ask for the length)
        assert rest == (list(range(count, 5)) or list(range(5)))


class iter_of_five:
    def __iter__(self) -> Any:
        return iter(range(5))


def test_one_rank_alone(tmp_path: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with make(sized, DistributedReadingService) as loader:
            stream = iter(loader)
            for _ in range(7):
                next(stream)
            state = loader.state_dict()
        with make(sized, DistributedReadingService) as loader:
            loader.load_state_dict(state)
            assert loader.epoch == 1
            assert sorted(loader) == list(range(7))
            assert loader.epoch == 2
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("inside", [False, True])
def test_a_state_saved_where_a_loop_is_left_is_told_to_go_another_way(inside: bool) -> None:
    loader = DataLoader2(IterableWrapper(range(20)).shuffle(buffer_size=5))
    loader.seed(3)
    for number, _ in enumerate(loader):
        if number == 2:
            if inside:
                loader.state_dict()
            break
    if not inside:
        loader.state_dict()
    with pytest.warns(UserWarning, match=r"call loader\.set_epoch\(loader\.epoch\)"):
        iter(loader)


def test_a_state_saved_on_the_way_is_not() -> None:
    loader = DataLoader2(IterableWrapper(range(20)))
    for number, _ in enumerate(loader):
        if number == 1:
            loader.state_dict()
        if number == 2:
            break
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        iter(loader)
