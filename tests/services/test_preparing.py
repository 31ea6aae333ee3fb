"""Services that define torchdata's methods, services that several loaders are given, and what a service tells."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from reading_services import (
    InProcessReadingService,
    MultiProcessingReadingService,
    PreparingReadingService,
    ReadingServiceInterface,
    SeedGenerator,
    SequentialReadingService,
)
from torchpipe import DataLoader2, IterDataPipe
from torchpipe.errors import GraphError
from torchpipe.execution.preparing import StreamOver
from torchpipe.iter import IterableWrapper


def numbers(count: int = 12) -> IterDataPipe[int]:
    return IterableWrapper(range(count)).shuffle(buffer_size=5).sharding_filter()


def negative(item: int) -> int:
    return -item


class Negating(ReadingServiceInterface):
    """Defines ``initialize`` alone."""

    def initialize(self, datapipe: Any) -> Any:
        return datapipe.map(negative)


class Recording(ReadingServiceInterface):
    """Has torchdata's methods, and notes which were called."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def initialize(self, datapipe: Any) -> Any:
        self.calls.append("initialize")
        return datapipe

    def initialize_iteration(self, seed_generator: SeedGenerator, iter_reset_fn: Any = None) -> Any:  # type: ignore[override]
        self.calls.append(f"initialize_iteration {seed_generator.generate_shared_seed()}")

    def finalize_iteration(self) -> None:
        self.calls.append("finalize_iteration")

    def finalize(self) -> None:
        self.calls.append("finalize")


class Stream:
    """No node, but it can be iterated, and holds one."""

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe

    def __iter__(self) -> Iterator[Any]:
        return (item + random.random() for item in self.datapipe)


class Streaming(ReadingServiceInterface):
    def initialize(self, datapipe: Any) -> Any:
        return Stream(datapipe)


def test_initialize_alone_is_enough() -> None:
    service = Negating()
    with DataLoader2(numbers(), reading_service=service) as loader, DataLoader2(numbers()) as plain:
        loader.seed(3)
        plain.seed(3)
        expected = [[-item for item in plain] for _ in range(2)]
        assert [list(loader), list(loader)] == expected
        assert len(loader) == 12
        assert "prepared by Negating" in loader.explain()


def test_its_state_goes_on_exactly() -> None:
    loader = DataLoader2(numbers(), reading_service=Negating())
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    state = loader.state_dict()
    assert list(DataLoader2.from_state(state, numbers(), Negating())) == list(iterator)


def test_an_iterable_that_is_no_node_has_its_nodes_as_inputs() -> None:
    loader = DataLoader2(numbers(), reading_service=Streaming())
    loader.seed(1)
    first = list(loader)
    assert sorted(map(int, first)) == list(range(12))
    loader.seed(1)
    assert list(loader) == first


@pytest.mark.parametrize("workers", [0, 2])
def test_it_may_stand_before_the_last_service(workers: int) -> None:
    service = SequentialReadingService(Negating(), MultiProcessingReadingService(workers))
    with DataLoader2(IterableWrapper(range(6)).sharding_filter(), reading_service=service) as loader:
        assert list(loader) == [0, -1, -2, -3, -4, -5]


def test_torchdatas_methods_are_called_in_its_order() -> None:
    calls: list[str] = []
    loader = DataLoader2(numbers(), reading_service=Recording(calls))
    loader.seed(3)
    epochs = [list(loader), list(loader)]
    assert epochs[0] != epochs[1]
    loader.shutdown()
    seeds = [call.split()[1] for call in calls if " " in call]
    assert len(set(seeds)) == 2
    names = [call.split()[0] for call in calls]
    assert names == ["initialize", *["initialize_iteration", "finalize_iteration"] * 2, "finalize"]
    again: list[str] = []
    loader = DataLoader2(numbers(), reading_service=Recording(again))
    loader.seed(3)
    assert [list(loader), list(loader)] == epochs
    assert [call.split()[1] for call in again if " " in call] == seeds
    assert loader.reading_service.calls is again  # type: ignore[attr-defined]


def test_they_are_called_before_another_service_too() -> None:
    calls: list[str] = []
    service = SequentialReadingService(Recording(calls), InProcessReadingService(num_shards=2))
    with DataLoader2(numbers(), reading_service=service) as loader:
        assert len([*loader, *loader]) == 24
    names = [call.split()[0] for call in calls]
    assert names == ["initialize", *["initialize_iteration", "finalize_iteration"] * 2, "finalize"]


def test_a_service_takes_the_arguments_of_its_constructor_alone() -> None:
    with pytest.raises(TypeError):
        Negating(3)  # type: ignore[call-arg]
    assert not hasattr(DataLoader2(numbers(), reading_service=Negating()).reading_service, "of_nobody")


def test_what_initialize_must_return() -> None:
    class Forgetful(ReadingServiceInterface):
        def initialize(self, datapipe: Any) -> Any:
            datapipe.map(negative)

    with pytest.raises(TypeError, match=r"Forgetful.initialize must return the datapipe.* got None: is a return"):
        DataLoader2(numbers(), reading_service=Forgetful())


def test_a_function_for_each_epoch_is_refused() -> None:
    class Resetting(Recording):
        def initialize_iteration(self, seed_generator: SeedGenerator, iter_reset_fn: Any = None) -> Any:  # type: ignore[override]
            return lambda datapipe: datapipe

    loader = DataLoader2(numbers(), reading_service=Resetting([]))
    with pytest.raises(TypeError, match="must be given as worker_reset_fn"):
        iter(loader)


@pytest.mark.parametrize(
    "service",
    [
        MultiProcessingReadingService(2, worker_prefetch_cnt=3, num_shards=4),
        InProcessReadingService(num_shards=4),
        SequentialReadingService(Negating(), MultiProcessingReadingService(2, num_shards=4)),
    ],
    ids=lambda service: type(service).__name__,
)
def test_a_service_given_to_two_loaders_is_refused(service: ReadingServiceInterface) -> None:
    with DataLoader2(numbers(), reading_service=service) as first:
        first.seed(5)
        running = iter(first)
        begun = [next(running), next(running)]
        for other in (service, SequentialReadingService):
            with pytest.raises(GraphError, match="belongs to another loader: make one for each loader"):
                DataLoader2(numbers(), reading_service=other(service) if isinstance(other, type) else other)
        assert len(begun + list(running)) == len(list(numbers()))


def order_of(seed: int) -> list[int]:
    loader = DataLoader2(numbers())
    loader.seed(seed)
    return list(loader)


def test_a_loader_that_failed_does_not_keep_its_service() -> None:
    service = MultiProcessingReadingService(2)
    with pytest.raises(ValueError, match="no sharding point"):
        DataLoader2(IterableWrapper(range(4)), reading_service=service)
    with DataLoader2(IterableWrapper(range(4)).sharding_filter(), reading_service=service) as loader:
        assert list(loader) == [0, 1, 2, 3]


def test_a_service_tells_how_it_was_made() -> None:
    service = MultiProcessingReadingService(3, worker_prefetch_cnt=0, main_prefetch_cnt=4)
    assert (service.num_workers, service.worker_prefetch_cnt, service.main_prefetch_cnt) == (3, 0, 4)
    assert InProcessReadingService(5).prefetch_cnt == 5
    with pytest.raises(AttributeError):
        service.num_workers = 2  # type: ignore[misc]


class Forgets(PreparingReadingService):
    def run_iteration(self, start: Any, begin: Any) -> Any:
        begin(start)


def test_a_service_that_returns_no_stream_is_told_so() -> None:
    with pytest.raises(TypeError, match=r"Forgets\.run_iteration must return .* is a return missing"):
        list(DataLoader2(numbers(), reading_service=Forgets()))


class Telling(PreparingReadingService):
    """Notes when a stream begins and ends."""

    def __init__(self, said: list[str]) -> None:
        super().__init__()
        self.said = said

    def run_iteration(self, start: Any, begin: Any) -> Any:
        return Told(begin(start), self.said)


class Told(StreamOver):
    def __init__(self, inner: Any, said: list[str]) -> None:
        super().__init__(inner)
        self.said = said

    def run(self) -> Iterator[Any]:
        self.said.append("begin")
        yield from self.source.items()
        self.said.append("end")


@pytest.mark.parametrize("workers", [0, 2])
def test_L2_a_stream_over_another_has_its_state(workers: int) -> None:
    said: list[str] = []

    def make() -> DataLoader2[Any]:
        follows = MultiProcessingReadingService(workers, num_shards=2)
        return DataLoader2(numbers(), reading_service=SequentialReadingService(Telling(said), follows))

    loader = make()
    loader.seed(3)
    stream = iter(loader)
    head = [next(stream) for _ in range(5)]
    state = loader.state_dict()
    rest = list(stream)
    assert said == ["begin", "end"]
    resumed = make()
    resumed.load_state_dict(state)
    assert (list(resumed), sorted(head + rest)) == (rest, list(range(12)))
    assert said == ["begin", "end"] * 2
    loader.shutdown()
    resumed.shutdown()
