"""A map-style dataset with a state of its own: its state goes where it can be taken up, and nowhere else in silence."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import Dataset

from torchpipe import DataLoader, errors


class Counting(Dataset[int]):
    """Sample ``i`` is how many have been read, itself included."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        self.read += 1
        return self.read

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.read = state["read"]


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_L7_the_state_of_a_dataset_in_process_is_not_dropped_by_workers(method: Any) -> None:
    first = DataLoader(Counting())
    stream = iter(first)
    assert [int(next(stream)) for _ in range(5)] == [1, 2, 3, 4, 5]
    other = DataLoader(Counting(), num_workers=2, worker_method=method)
    with pytest.raises(errors.StateMismatchError, match=r"read in process .* num_workers=2"):
        other.load_state_dict(first.state_dict())
    again = DataLoader(Counting())
    again.load_state_dict(first.state_dict())
    assert [int(item) for item in again] == list(range(6, 13))
