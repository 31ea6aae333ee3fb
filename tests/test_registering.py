"""Functional forms that users registered with torch's decorator, or by torch's class method."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import IterDataPipe as TorchIterDataPipe
from torch.utils.data import functional_datapipe as torch_functional_datapipe
from torch.utils.data.datapipes.iter import Mapper as TorchMapper

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2, IterDataPipe, MapDataPipe
from torchpipe.iter import IterableWrapper, Taker
from torchpipe.map import SequenceWrapper


@torch_functional_datapipe("of_torch_plus")
class Plus(IterDataPipe[int]):
    def __init__(self, datapipe: Any, number: int = 1) -> None:
        self.datapipe = datapipe
        self.number = number

    def __iter__(self) -> Any:
        return (item + self.number for item in self.datapipe)


@torch_functional_datapipe("of_torch_double")
class Double(MapDataPipe[int]):
    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe

    def __getitem__(self, index: Any) -> int:
        return int(self.datapipe[index] * 2)

    def __len__(self) -> int:
        return len(self.datapipe)


IterDataPipe.register_datapipe_as_function("by_method_plus", Plus)
TorchIterDataPipe.register_function("by_function_plus", Plus)


@pytest.mark.parametrize("form", ["of_torch_plus", "by_method_plus", "by_function_plus"])
def test_a_form_registered_with_torch(form: str) -> None:
    source: Any = IterableWrapper([1, 2, 3, 4]).sharding_filter()
    assert list(getattr(source, form)(3).map(str)) == ["4", "5", "6", "7"]
    with DataLoader2(getattr(source, form)(number=1), reading_service=MultiProcessingReadingService(2)) as loader:
        assert list(loader) == [2, 3, 4, 5]


def test_a_map_style_form_registered_with_torch() -> None:
    source: Any = SequenceWrapper([1, 2])
    assert list(source.of_torch_double()) == [2, 4]


def test_torchs_own_forms_stay_out() -> None:
    source: Any = IterableWrapper([1])
    for name in ("_dataframes_per_row", "of_nobody"):
        assert not hasattr(source, name)


@torch_functional_datapipe("sample_like_dgl")
class SampleLikeDgl(TorchMapper):  # type: ignore[misc]
    """As DGL's samplers: torch's ``Mapper`` with a method of the node itself."""

    def __init__(self, datapipe: Any, fanout: int) -> None:
        super().__init__(datapipe, self._sample)
        self.fanout = fanout

    def _sample(self, item: int) -> int:
        return item * self.fanout


@torch_functional_datapipe("buffer_like_dgl")
class BufferLikeDgl(TorchIterDataPipe[int]):
    """As DGL's ``Bufferer``: a deque in the node, with torch's protocol for pickling and for beginning anew."""

    def __init__(self, datapipe: Any, buffer_size: int) -> None:
        self.datapipe = datapipe
        self.buffer: deque[int] = deque(maxlen=buffer_size)

    def __iter__(self) -> Iterator[int]:
        for item in self.datapipe:
            if len(self.buffer) == self.buffer.maxlen:
                yield self.buffer.popleft()
            self.buffer.append(item)
        while self.buffer:
            yield self.buffer.popleft()

    def __getstate__(self) -> Any:
        state = (self.datapipe, self.buffer.maxlen)
        hook = TorchIterDataPipe.getstate_hook
        return state if hook is None else hook(state)

    def __setstate__(self, state: Any) -> None:
        self.datapipe, size = state
        self.buffer = deque(maxlen=size)

    def reset(self) -> None:
        self.buffer.clear()


@torch_functional_datapipe("sort")
class SortLikeWenet(TorchIterDataPipe[int]):
    """As wenet's ``sort``, whose name a node of torchpipe's has as well."""

    def __init__(self, datapipe: Any, buffer_size: int, key_func: Callable[[int], Any]) -> None:
        self.datapipe = datapipe
        self.buffer_size = buffer_size
        self.key_func = key_func
        self._buffer: list[int] = []

    def __iter__(self) -> Iterator[int]:
        for item in self.datapipe:
            self._buffer.append(item)
            if len(self._buffer) == self.buffer_size:
                yield from self._sorted()
        yield from self._sorted()

    def _sorted(self) -> list[int]:
        taken, self._buffer = sorted(self._buffer, key=self.key_func), []
        return taken


def others() -> Any:
    """Nodes of other people on ours, and ours, and torch's, on theirs."""
    source: Any = IterableWrapper(range(20)).shuffle().sharding_filter()
    sampled = source.sample_like_dgl(10).buffer_like_dgl(3)
    return Taker(sampled.sort(4, key_func=lambda item: -item), 9).map(str).batch(2)


@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
def test_L2_nodes_of_other_people_resume_at_every_position() -> None:
    def loader() -> DataLoader2[Any]:
        made = DataLoader2(others())
        made.seed(7)
        return made

    whole = list(loader())
    assert sum(map(len, whole)) == 9
    for position in range(len(whole)):
        begun = loader()
        iterator = iter(begun)
        assert [next(iterator) for _ in range(position)] == whole[:position]
        resumed = DataLoader2(others())
        resumed.load_state_dict(begun.state_dict())
        assert list(resumed) == whole[position:]


@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
def test_L1_nodes_of_other_people_in_workers() -> None:
    with DataLoader2(others(), reading_service=MultiProcessingReadingService(2)) as loader:
        loader.seed(7)
        first, second = list(loader), list(loader)
        assert sum(map(len, first)) == 18
        assert first != second
    with DataLoader2(others(), reading_service=MultiProcessingReadingService(1, num_shards=2)) as loader:
        loader.seed(7)
        assert list(loader) == first
