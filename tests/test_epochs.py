"""``loader.epoch`` tells the truth after every resume, so that the loop over epochs needs no counter of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from reading_services import DistributedReadingService, MultiProcessingReadingService, SequentialReadingService
from torchpipe import DataLoader, DataLoader2, InProcessReadingService
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


def estimated() -> Any:
    return sized().set_length(5)


GRAPHS: dict[str, Callable[[], Any]] = {"sized": sized, "without length": unsized, "a wrong length": estimated}


def make(graph: Callable[[], Any], service: Callable[[], Any]) -> DataLoader2[Any]:
    return DataLoader2(graph(), reading_service=service())


def reference(graph: Callable[[], Any]) -> list[tuple[int, Any]]:
    loader = make(graph, SERVICES["in process"])
    loader.seed(1)
    return [(epoch, item) for epoch in range(EPOCHS) for item in loader]


def states(graph: Callable[[], Any], service: Callable[[], Any]) -> list[tuple[int, int, dict[str, Any]]]:
    """(items delivered before, the epoch that the run is in, state) at every position, and between the loops."""
    saved: list[tuple[int, int, dict[str, Any]]] = []
    with make(graph, service) as loader:
        loader.seed(1)
        count = 0
        saved.append((0, 0, loader.state_dict()))
        for epoch in range(EPOCHS):
            for _ in loader:
                count += 1
                saved.append((count, epoch, loader.state_dict()))
            saved.append((count, epoch + 1, loader.state_dict()))
    return saved


CASES = [(service, "without length") for service in SERVICES] + [
    (service, graph) for service in ("in process", "one by one") for graph in ("sized", "a wrong length")
]


@pytest.mark.parametrize(("service", "graph"), [(SERVICES[service], GRAPHS[graph]) for service, graph in CASES])
def test_both_loops_over_epochs_are_right_after_every_resume(
    service: Callable[[], Any], graph: Callable[[], Any]
) -> None:
    expected = reference(graph)
    for count, epoch, state in states(graph, service):
        assert state["epoch"] == epoch
        with make(graph, service) as loader:
            loader.load_state_dict(state)
            assert loader.epoch == epoch
            got: list[Any] = []
            while loader.epoch < EPOCHS:
                number = loader.epoch
                got.extend((number, item) for item in loader)
            assert got == expected[count:]
            loader.load_state_dict(state)
            got = []
            for number in range(epoch, EPOCHS):
                loader.set_epoch(number)
                assert loader.epoch == number
                got.extend((number, item) for item in loader)
            assert got == expected[count:]


def test_another_epoch_than_the_loaded_one_begins_at_its_start() -> None:
    expected = reference(sized)
    for _, epoch, state in states(sized, SERVICES["in process"]):
        for wanted in {0, 1, 2} - {epoch}:
            loader = make(sized, SERVICES["in process"])
            loader.load_state_dict(state)
            loader.set_epoch(wanted)
            assert [(loader.epoch, item) for item in loader] == [pair for pair in expected if pair[0] == wanted]


@pytest.mark.parametrize("service", [SERVICES["one by one"], SERVICES["workers"]])
def test_iterator_and_loader_agree_where_nothing_is_left(service: Callable[[], Any]) -> None:
    with make(sized, service) as loader:
        loader.seed(1)
        stream = iter(loader)
        for _ in range(7):
            next(stream)
        state = loader.state_dict()
    with make(sized, service) as loader:
        loader.load_state_dict(state)
        stream = iter(loader)
        assert (loader.epoch, stream.epoch, stream.delivered) == (0, 0, 7)
        again = loader.state_dict()
        assert next(stream, None) is None
        assert (loader.epoch, stream.epoch, stream.delivered) == (1, 0, 7)
        at_end = stream.state_dict()
        following = loader.state_dict()
    for saved, epoch in ((again, 0), (at_end, 0), (following, 1)):
        with make(sized, service) as loader:
            loader.load_state_dict(saved)
            assert loader.epoch == epoch
            if epoch == 0:
                assert list(loader) == []
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
        assert rest == list(range(count, 5))
        assert resumed.epoch == 1


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
            assert (loader.epoch, list(loader)) == (0, [])
            assert (loader.epoch, sorted(loader)) == (1, list(range(7)))
            assert loader.epoch == 2
    finally:
        dist.destroy_process_group()


def graph_loader() -> DataLoader2[Any]:
    loader: DataLoader2[Any] = DataLoader2(IterableWrapper(range(20)).shuffle(buffer_size=5))
    loader.seed(3)
    return loader


def map_loader() -> DataLoader[Any]:
    return DataLoader(range(20), shuffle=True, generator=torch.Generator().manual_seed(3))  # type: ignore[arg-type]


def one_epoch(loader: Any) -> list[int]:
    return [int(item) for item in loader]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("make_one", [graph_loader, map_loader])
def test_a_state_saved_where_a_loop_is_left_is_told_to_go_another_way(
    make_one: Callable[[], Any], closes: bool, inside: bool
) -> None:
    loader = make_one()
    for number, _ in enumerate(loader):
        if number == 2:
            if inside:
                loader.state_dict()
            break
    if closes:
        loader.shutdown()
    if not inside:
        loader.state_dict()
    with pytest.warns(
        UserWarning,
        match=r"let go of its iterator, call loader\.set_epoch\(loader\.epoch\), and save then",
    ):
        iter(loader)


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("make_one", [graph_loader, map_loader])
def test_what_that_warning_advises_lets_both_go_the_same_way(make_one: Callable[[], Any], closes: bool) -> None:
    loader, other = make_one(), make_one()
    for number, _ in enumerate(loader):
        if number == 2:
            break
    if closes:
        loader.shutdown()
    loader.set_epoch(loader.epoch)
    other.load_state_dict(loader.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (loader.epoch, other.epoch) == (1, 1)
        goes_on = one_epoch(loader)
    assert one_epoch(other) == goes_on
    assert sorted(goes_on) == list(range(20))


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
