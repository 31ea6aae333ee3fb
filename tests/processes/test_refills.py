"""Functions that fill one object again and again: each item is what it was when it was made, in chunks or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reading_services import MultiProcessingReadingService
from reading_services.hosting.shards import Images, dump_items, load_items
from torchpipe import DataLoader, DataLoader2, NodeIterator
from torchpipe.iter import IterableWrapper, IterDataPipe

BATCHES = [list(range(first, first + 4)) for first in range(0, 240, 4)]


class OneTensor:
    def __init__(self) -> None:
        self.out = torch.zeros(4, dtype=torch.long)

    def __call__(self, samples: list[int]) -> torch.Tensor:
        for index, sample in enumerate(samples):
            self.out[index] = sample
        return self.out


class ThreeInTurn:
    def __init__(self) -> None:
        self.made, self.outs = 0, [OneTensor() for _ in range(3)]

    def __call__(self, samples: list[int]) -> torch.Tensor:
        self.made += 1
        return self.outs[self.made % 3](samples)


class Within(OneTensor):
    """A view of one array, in a new dict each time."""

    def __init__(self) -> None:
        self.array = np.zeros(10, np.int64)

    def __call__(self, samples: list[int]) -> Any:
        self.array[2:6] = samples
        return {"batch": torch.from_numpy(self.array[2:6])}


@dataclass
class Batch:
    content: list[int]


class OneObject:
    def __init__(self) -> None:
        self.batch = Batch([])

    def __call__(self, samples: list[int]) -> Batch:
        self.batch.content = samples
        return self.batch


def plain(batch: Any) -> list[int]:
    batch = batch["batch"] if isinstance(batch, dict) else batch
    return list(batch.content if isinstance(batch, Batch) else batch.tolist())


@pytest.mark.parametrize("kind", [OneTensor, ThreeInTurn, Within, OneObject])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_collate_fn_that_fills_what_it_has_returned(kind: Callable[[], Any], workers: int) -> None:
    loader = DataLoader(range(240), batch_size=4, num_workers=workers, collate_fn=kind(), prefetch_factor=20)
    for _ in range(2):
        assert [plain(batch) for batch in loader] == BATCHES
    stream = iter(loader)
    assert [plain(next(stream)) for _ in range(7)] == BATCHES[:7]
    state = loader.state_dict()
    loader.shutdown()
    again = DataLoader(range(240), batch_size=4, num_workers=workers, collate_fn=kind(), prefetch_factor=20)
    again.load_state_dict(state)
    assert [plain(batch) for batch in again] == BATCHES[7:]
    again.shutdown()


def test_a_function_of_a_graph_that_does() -> None:
    graph = IterableWrapper(range(240)).batch(4).sharding_filter().map(OneTensor())
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
        assert [plain(batch) for batch in loader] == BATCHES


class OneTensorLater(OneTensor):
    """Its first items are plain, or of equal content."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def __call__(self, samples: list[int]) -> Any:
        self.made += 1
        return samples[0] if self.made < 9 else super().__call__([max(samples[0], 40)] * 4)


def test_a_function_whose_first_items_do_not_show_it() -> None:
    def first_of(item: Any) -> int:
        return item if isinstance(item, int) else int(item[0])

    graph = IterableWrapper(range(240)).batch(4).sharding_filter().map(OneTensorLater())
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(1)) as loader:
        found = [first_of(item) for item in loader]
    assert found == [first if index < 8 else max(first, 40) for index, first in enumerate(range(0, 240, 4))]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_that_runs_in_the_dispatcher(workers: int) -> None:
    graph = IterableWrapper(range(240)).batch(4).map(OneTensor()).sharding_round_robin_dispatch()
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(workers)) as loader:
        assert [plain(batch) for batch in loader] == BATCHES


class OneSample(torch.utils.data.Dataset[Any]):
    """Fills the same tensor for each sample, and the same list for each batch."""

    def __init__(self, form: Callable[[torch.Tensor], Any]) -> None:
        self.form, self.out, self.batch = form, torch.zeros((), dtype=torch.long), list[Any]()

    def __len__(self) -> int:
        return 240

    def __getitem__(self, index: int) -> Any:
        return self.form(self.out.fill_(index))

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.batch[:] = [self.form(torch.tensor(index)) for index in indices]
        return self.batch


FORMS: list[Callable[[torch.Tensor], Any]] = [
    lambda tensor: tensor,
    lambda tensor: {"batch": tensor},
    lambda tensor: (tensor, "text"),
    lambda tensor: {"deep": [{"batch": tensor}], "name": str(int(tensor))},
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("getitems", [False, True])
def test_a_dataset_that_fills_its_samples_under_default_collate(form: Callable[[Any], Any], getitems: bool) -> None:
    class OneByOne(OneSample):
        __getitems__ = None  # type: ignore[assignment]

    dataset = OneSample(form) if getitems else OneByOne(lambda tensor: form(tensor.clone()))
    plain_loader = DataLoader(dataset, batch_size=4)
    expected = [str(batch) for batch in plain_loader]
    with DataLoader(dataset, batch_size=4, num_workers=1, prefetch_factor=20) as loader:
        assert [str(batch) for batch in loader] == expected


class Ids(list[int]):
    pass


def test_default_collate_with_an_entry_of_the_users_that_fills_one_tensor() -> None:
    from torch.utils.data._utils.collate import default_collate_fn_map

    out = torch.zeros(4, dtype=torch.long)

    def fill(batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
        return out.copy_(torch.tensor([sample[0] for sample in batch]))

    default_collate_fn_map[Ids] = fill
    try:
        with DataLoader([Ids([n]) for n in range(240)], batch_size=4, num_workers=1, prefetch_factor=20) as loader:
            assert [plain(batch) for batch in loader] == BATCHES
    finally:
        del default_collate_fn_map[Ids]


def make_local() -> Callable[[list[int]], Any]:
    class Local:
        content: list[int]

    kept = Local()

    def fill(samples: list[int]) -> Any:
        kept.content = samples
        return kept

    return fill


def test_an_object_of_a_class_within_a_function_that_is_filled_again() -> None:
    fill = make_local()
    with DataLoader(range(240), batch_size=4, num_workers=1, collate_fn=fill, prefetch_factor=20) as loader:
        assert [batch.content for batch in loader] == BATCHES


class OneArray(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.out = np.zeros(4)

    def __len__(self) -> int:
        return 240

    def __getitem__(self, index: int) -> float:
        return float(index)

    def __getitems__(self, indices: list[int]) -> Any:
        self.out[:] = indices
        return self.out


def test_an_array_that_is_filled_again_under_default_collate() -> None:
    """torch makes a tensor in the array's memory."""
    with DataLoader(OneArray(), batch_size=4, num_workers=1, prefetch_factor=20) as loader:
        assert [plain(batch) for batch in loader] == BATCHES
    graph = IterableWrapper(range(240)).batch(4).sharding_filter().map(OneArray().__getitems__).collate()
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(1)) as loader2:
        assert [plain(batch) for batch in loader2] == BATCHES


class _OneTensorAgain(NodeIterator[torch.Tensor]):
    def run(self) -> Iterator[torch.Tensor]:
        out = torch.zeros(4, dtype=torch.long)
        for batch in self.source.items():
            yield out.copy_(batch)


class StagedInOne(IterDataPipe[torch.Tensor]):
    """A node of the user's that gives the same items, in one tensor."""

    alters_stream = False
    iterator = _OneTensorAgain

    def __init__(self, datapipe: IterDataPipe[torch.Tensor]) -> None:
        self.datapipe = datapipe


def test_a_node_of_the_users_that_hands_on_the_same_values_in_one_tensor() -> None:
    graph = StagedInOne(IterableWrapper(range(240)).batch(4).sharding_filter().collate())
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(1)) as loader:
        assert [plain(batch) for batch in loader] == BATCHES


ARRAYS: list[Callable[[], Any]] = [
    lambda: np.arange(6.0),
    lambda: np.asfortranarray(np.arange(12).reshape(3, 4)),
    lambda: np.arange(24, dtype=np.uint8).reshape(2, 3, 4).transpose(1, 2, 0)[:, ::2],
    lambda: np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    lambda: np.array(["text", None], dtype=object),
    lambda: np.zeros(40_000, dtype=np.float32),
    lambda: torch.arange(3),
    lambda: 7,
]


@given(st.data())
def test_what_waits_is_what_was_made_however_it_is_refilled(data: st.DataObject) -> None:
    """And what an item holds twice is one object there."""
    makes = data.draw(st.lists(st.sampled_from(ARRAYS), min_size=1, max_size=4))
    parts = [make() for make in makes] + data.draw(st.sampled_from([[], [0]]))
    twice = data.draw(st.booleans())
    held = [*parts, parts[0]] if twice else parts
    item: Any = data.draw(st.sampled_from([list, tuple, lambda all: dict(enumerate(all))]))(held)

    def made() -> Iterator[Any]:
        for number in range(3):
            for part in parts:
                if isinstance(part, np.ndarray) and part.dtype.kind in "ifu":
                    part[...] = number
                elif isinstance(part, torch.Tensor):
                    part.fill_(number)
            yield item

    chunk: list[Any] = []
    Images().extend(chunk, made())
    body, buffers = dump_items(chunk)
    for number, got in enumerate(load_items(memoryview(body), [bytearray(buffer) for buffer in buffers])):
        assert type(got) is type(item)
        values = list(got.values() if isinstance(got, dict) else got)
        for part, value in zip(held, values, strict=True):
            assert type(value) is type(part)
            if isinstance(part, np.ndarray):
                assert (value.dtype, value.shape, value.flags.writeable) == (part.dtype, part.shape, True)
                assert part.dtype.kind not in "ifu" or (value == number).all()
            elif isinstance(part, torch.Tensor):
                assert value.tolist() == [number] * 3
        assert not twice or values[-1] is values[0]
