"""How batches are put together in a ``DataLoader``'s workers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, default_collate

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper


class Squares(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((3,), float(index)), "y": index}


class SquaresInTurn(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return (Squares()[index] for index in range(12))


def collate_and_look(samples: list[Any]) -> Any:
    batch = default_collate(samples)
    return batch, [batch["x"].is_shared(), batch["y"].is_shared()]


@pytest.mark.parametrize("dataset", [Squares(), SquaresInTurn()], ids=["map-style", "iterable"])
def test_a_collate_function_of_the_users_makes_no_file_for_each_tensor(dataset: Any) -> None:
    loader: Any = DataLoader(dataset, 4, num_workers=1, collate_fn=collate_and_look)
    seen = []
    for batch, shared in loader:
        assert torch.equal(batch["x"], batch["y"][:, None].expand(4, 3).to(torch.float32))
        assert shared == [False, False]
        seen += batch["y"].tolist()
    assert seen == list(range(12))


def images_and_mask(samples: list[Any]) -> Any:
    images = torch.zeros(2, 3, 64, 64).to(memory_format=torch.channels_last)
    return images, torch.zeros(2, 1, 1, 2048, dtype=torch.bool).expand(2, 1, 2048, 2048)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 2, "worker_method": "thread"}], ids=str)
@pytest.mark.parametrize("dataset", [Squares(), SquaresInTurn()], ids=["map-style", "iterable"])
def test_batches_keep_their_memory_format_and_expanded_masks_stay_small(dataset: Any, options: Any) -> None:
    with DataLoader(dataset, 6, collate_fn=images_and_mask, **options) as loader:
        for images, mask in loader:
            assert images.is_contiguous(memory_format=torch.channels_last)
            assert mask.stride() == (2048, 2048, 0, 1)
            assert mask.untyped_storage().nbytes() == 2 * 2048


def test_a_buffer_s_items_keep_their_memory_format_through_a_state() -> None:
    def make(num_workers: int) -> Any:
        graph = IterableWrapper(range(12)).map(lambda number: images_and_mask([number])).shuffle(buffer_size=4)
        service = MultiProcessingReadingService(num_workers=num_workers, num_shards=1)
        return DataLoader2(graph, reading_service=service)

    with make(0) as loader:
        stream = iter(loader)
        next(stream)
        state = loader.state_dict()
    assert sum(len(value) for value in state.values() if isinstance(value, bytes)) < 5 * 2 * (3 * 64 * 64 * 4 + 2048)
    with make(1) as loader:
        loader.load_state_dict(state)
        for images, mask in loader:
            assert images.is_contiguous(memory_format=torch.channels_last)
            assert mask.stride() == (2048, 2048, 0, 1)
