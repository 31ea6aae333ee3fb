"""How batches are put together in a ``DataLoader``'s workers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, default_collate

from torchpipe import DataLoader


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
