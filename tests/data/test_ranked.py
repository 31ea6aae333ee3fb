"""``DataLoader`` on several ranks, as far as it needs no other process: whose batch is which, and what is refused.

Real ranks are in ``tests/services/test_distributed.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from torchpipe import DataLoader
from torchpipe.data.ranks.windows import Share
from torchpipe.errors import RankError, StateMismatchError


def _shares(length: int, size: int, ranks: int, drop_last: bool, uneven: str, before: int = 0) -> list[Share]:
    return [
        Share(length=length, size=size, rank=rank, ranks=ranks, drop_last=drop_last, uneven=uneven, before=before)
        for rank in range(ranks)
    ]


def _batch(share: Share, step: int) -> list[int]:
    return list(share.positions(step))


@given(
    st.integers(0, 60),
    st.integers(1, 7),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from(["drop", "pad"]),
    st.integers(0, 12),
    st.integers(1, 7),
    st.integers(1, 5),
)
@example(37, 6, 2, False, "pad", 3, 6, 2)  # the rank that pads has had its batch before the stop
def test_no_sample_is_lost_or_repeated_whoever_goes_on(
    length: int, size: int, ranks: int, drop_last: bool, uneven: str, steps: int, other_size: int, others: int
) -> None:
    """Some steps of some ranks, and then the rest by other ranks, in batches of another size."""
    first = _shares(length, size, ranks, drop_last, uneven)
    steps = min(steps, first[0].steps)
    had = [index for step in range(steps) for share in first for index in _batch(share, step)]
    behind = {share.after(steps) for share in first}
    assert len(behind) == 1
    (before,) = behind
    second = _shares(length, other_size, others, drop_last, uneven, before)
    assert len({share.steps for share in second}) == 1
    rest = [index for step in range(second[0].steps) for share in second for index in _batch(share, step)]
    assert set(had) == set(range(before))
    assert set(rest) <= set(range(before if uneven == "drop" else 0, length))  # a pad may be of before the stop
    left = len(set(range(before, length)) - set(rest))
    if uneven == "drop":
        assert len(set(had)) == len(had)
        assert len(set(rest)) == len(rest)
        assert rest == list(range(before, before + len(rest)))
        assert left < others * other_size
    else:
        assert left < (other_size if drop_last else 1)
    if (size, ranks) == (other_size, others):  # the same ranks: the same batches as without a stop
        whole = [index for step in range(first[0].steps) for share in first for index in _batch(share, step)]
        assert had + rest == whole


class Sevens(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 28

    def __getitem__(self, index: int) -> int:
        return 7 * index


class Counting(Sevens):
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return


def _of(rank: int, dataset: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, sampler=DistributedSampler(dataset, 2, rank), batch_size=2, **options)


def test_a_count_of_one_rank_loads_on_another_and_more_than_a_count_does_not() -> None:
    torch.manual_seed(3)
    loaders = [_of(rank, Sevens()) for rank in range(2)]
    streams = [iter(loader) for loader in loaders]
    for _ in range(2):
        for stream in streams:
            next(stream)
    state = loaders[0].state_dict()
    rest = [batch.tolist() for batch in streams[1]]
    other = _of(1, Sevens())
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == rest
    own = _of(0, Counting())
    next(iter(own))
    with pytest.raises(StateMismatchError, match="that of rank 0, and this is rank 1: .*more than a count"):
        _of(1, Counting()).load_state_dict(own.state_dict())
    again = _of(0, Counting())
    again.load_state_dict(own.state_dict())


class Noise(Sevens):
    def __getitem__(self, index: int) -> int:
        return int(torch.randint(1 << 40, ()))


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_do_not_augment_alike(workers: int) -> None:
    """Though they are seeded alike, so that one state will do for all."""
    seen = []
    for rank in range(2):
        torch.manual_seed(3)
        options = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
        seen.append([batch.tolist() for batch in _of(rank, Noise(), **options)])
    assert not {number for batch in seen[0] for number in batch} & {number for batch in seen[1] for number in batch}


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("workers", [0, 1])
def test_the_last_batch_is_discarded(workers: int) -> None:
    for more, sizes in (({"drop_last": True}, [8] * 3), ({}, [8, 8, 8, 4])):
        with DataLoader(Sevens(), 8, distributed=True, num_workers=workers, **more) as loader:
            assert [len(batch) for batch in loader] == sizes


@pytest.mark.usefixtures("alone")
def test_L7_fewer_batches_than_ranks_are_refused() -> None:
    with pytest.raises(RankError, match=r"0 batches of 28 samples for 1 ranks: none would have one"):
        iter(DataLoader(Sevens(), 30, distributed=True, drop_last=True))


@pytest.mark.usefixtures("alone")
def test_no_draw_comes_twice_after_another_batch_size() -> None:
    torch.manual_seed(1)
    loader = DataLoader(Noise(), 2, distributed=True)
    stream = iter(loader)
    before = {number for _ in range(4) for number in next(stream).tolist()}
    for size in (1, 3, 4):
        other = DataLoader(Noise(), size, distributed=True)
        other.load_state_dict(loader.state_dict())
        after = [number for batch in other for number in batch.tolist()]
        assert len({*after, *before}) == 28
