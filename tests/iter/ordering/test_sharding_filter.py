"""``sharding_filter``: shards are disjoint and complete; torch's loaders may say which part to keep."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data.graph_settings import apply_sharding

from torchpipe.iter import IterableWrapper
from torchpipe.iter.ordering import SHARDING_PRIORITIES
from torchpipe.node.datapipe import iterate
from torchpipe.testing import CountingSource, check_node


def test_L2_exact_resume() -> None:
    check_node(lambda: CountingSource(range(11)).sharding_filter(), num_shards=3, pulls=lambda k: 3 * k)


@given(st.integers(0, 30), st.integers(1, 7))
def test_shards_are_disjoint_and_complete(length: int, num_shards: int) -> None:
    node = IterableWrapper(range(length)).sharding_filter()
    shares = [list(iterate(node, shard=shard, num_shards=num_shards)) for shard in range(num_shards)]
    assert [share[0] for share in shares if share] == list(range(min(length, num_shards)))
    assert sorted(item for share in shares for item in share) == list(range(length))
    assert all(share == list(range(length))[shard::num_shards] for shard, share in enumerate(shares))


@given(st.integers(0, 30), st.integers(1, 7))
def test_len_after_apply_sharding_is_that_of_the_part(length: int, parts: int) -> None:
    for part in range(parts):
        node: Any = IterableWrapper(range(length)).sharding_filter()
        assert len(node) == length
        node.apply_sharding(parts, part)
        assert len(node) == len(list(node)) == len(range(length)[part::parts])


def test_a_part_that_was_applied_is_that_of_iter_and_of_no_loader_of_ours() -> None:
    node: Any = IterableWrapper(range(10)).sharding_filter()
    apply_sharding(node.map(str), 5, 2, SHARDING_PRIORITIES.DEFAULT)
    assert list(node) == [2, 7]
    assert list(iterate(node, shard=0, num_shards=2)) == [0, 2, 4, 6, 8]


def test_groups_are_nested_as_torch_nests_them() -> None:
    from torch.utils.data.datapipes.iter import IterableWrapper as TorchWrapper

    for rank in range(2):
        for worker in range(3):
            mine: Any = IterableWrapper(range(20)).sharding_filter()
            torchs: Any = TorchWrapper(range(20)).sharding_filter()
            for node in (mine, torchs):
                node.apply_sharding(2, rank, SHARDING_PRIORITIES.DISTRIBUTED)
                node.apply_sharding(3, worker, SHARDING_PRIORITIES.MULTIPROCESSING)
            assert list(mine) == list(torchs)
            assert len(mine) == len(torchs)


def test_a_group_filter_keeps_the_other_groups_out() -> None:
    node: Any = IterableWrapper(range(6)).sharding_filter(SHARDING_PRIORITIES.DISTRIBUTED)
    node.apply_sharding(2, 1, SHARDING_PRIORITIES.MULTIPROCESSING)
    assert list(node) == list(range(6))
    node.apply_sharding(3, 1, SHARDING_PRIORITIES.DISTRIBUTED)
    assert list(node) == [1, 4]


def test_shards_of_every_kind_and_of_one_do_not_go_together() -> None:
    node: Any = IterableWrapper([1]).sharding_filter()
    node.apply_sharding(2, 1)
    with pytest.raises(RuntimeError, match="DEFAULT"):
        node.apply_sharding(2, 1, SHARDING_PRIORITIES.DISTRIBUTED)
