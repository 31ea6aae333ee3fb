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


class Told(Counting):
    """Sample ``i`` is (i, how many have been read)."""

    def __getitem__(self, index: int) -> Any:
        return index, super().__getitem__(index)


def rows(loader: Any, stop: int | None = None) -> list[Any]:
    found = []
    for batch in loader:
        found.append([part.tolist() for part in batch])
        if len(found) == stop:
            break
    return found


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_L2_a_loader_that_was_used_is_taken_back(options: Any) -> None:
    loader = DataLoader(Told(), batch_size=2, **options)
    start = loader.state_dict()
    expected = rows(loader) + rows(loader)
    for state in (start, {}):
        loader.load_state_dict(state)
        assert rows(loader, 1) == expected[:1]
        loader.load_state_dict(loader.state_dict())  # as docs advise after an exception
        assert rows(loader) + rows(loader) == expected[1:]
    loader.shutdown()


def test_L1_after_a_break_no_worker_goes_on_with_what_nobody_was_handed() -> None:
    for ahead in (1, 4):
        with DataLoader(Told(), 2, num_workers=2, persistent_workers=True, prefetch_factor=ahead) as loader:
            stream = iter(loader)
            assert [part.tolist() for part in next(stream)] == [[0, 1], [1, 2]]
            if ahead > 1:  # the other worker has made one: its chunk is here when the loop's next batch is
                del stream
            stream = None
            counts = [count for _, count in rows(loader)]
            assert counts[:4] == [[3, 4], [1, 2], [5, 6], [3, 4]]


def test_L2_a_state_of_the_last_batch_keeps_the_datasets_of_workers_that_persist() -> None:
    def make(state: Any = None) -> Any:
        loader = DataLoader(Told(), batch_size=4, num_workers=2, persistent_workers=True)
        if state is not None:
            loader.load_state_dict(state)
        return loader

    def take(loader: Any, count: int) -> tuple[list[Any], Any]:
        found: list[Any] = []
        with loader:
            while len(found) < count:
                for batch in loader:
                    found.append([part.tolist() for part in batch])
                    if len(found) == count:
                        break
            return found, loader.state_dict()

    expected, _ = take(make(), 9)
    for first in (1, 3, 4, 6):
        found, state = take(make(), first)
        more, state = take(make(state), 1)
        rest, _ = take(make(state), 9 - first - 1)
        assert found + more + rest == expected, first
