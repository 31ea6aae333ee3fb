"""``SampleMultiplexer``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from torch.utils.data import DataLoader

from tests.iter.combining.test_multiplexers import LENGTHS, sources
from tests.test_function_results import KINDS
from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper, SampleMultiplexer
from torchpipe.node.datapipe import iterate
from torchpipe.testing import check_node


@given(LENGTHS)
def test_L2_sample_multiplexer_resumes_exactly(lengths: list[int]) -> None:
    def make() -> SampleMultiplexer[Any]:
        return SampleMultiplexer({source: number + 1 for number, source in enumerate(sources(lengths))})

    check_node(make, epochs=[0], num_shards=1, pulls=lambda k: k)
    items = list(make())
    assert len(items) == len(make()) == sum(lengths)
    for number, length in enumerate(lengths):
        assert [index for place, index in items if place == number] == list(range(length))


def test_weights_are_kept() -> None:
    often, seldom = IterableWrapper(["often"] * 4000), IterableWrapper(["seldom"] * 4000)
    node = SampleMultiplexer({often: 3, seldom: 1})
    items = [item for item, _ in zip(iterate(node), range(2000))]
    assert 1420 < items.count("often") < 1580  # 1500; four standard deviations
    assert items != [item for item, _ in zip(iterate(node, epoch=1), range(2000))]
    seeded = SampleMultiplexer({often: 3, seldom: 1}, seed=5)
    assert list(iterate(seeded, seed=1)) == list(iterate(seeded, seed=2)) != list(iterate(node, seed=1))


@pytest.mark.parametrize("change", [{"open": [2]}, {"open": [[]]}, {"open": [0, 1, 1]}, {"random": 3}])
def test_L8_forged_states_are_refused(change: dict[str, Any]) -> None:
    node: Any = SampleMultiplexer({IterableWrapper(range(3)): 1, IterableWrapper("ab"): 1})
    with pytest.raises(StateError):
        iterate(node).load_state_dict(iterate(node).state_dict() | change)


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_torchs_loader_gives_each_item_once_and_epochs_differ(workers: int) -> None:
    torch.manual_seed(4)
    for persistent in {False, workers == 2}:
        halves: list[Any] = [IterableWrapper(range(9)), IterableWrapper(range(9, 24))]
        graph = SampleMultiplexer(dict.fromkeys(halves, 1)).sharding_filter()
        loader = DataLoader(graph, batch_size=None, num_workers=workers, persistent_workers=persistent)
        epochs = [[int(item) for item in loader] for _ in range(2)]
        assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(24)), persistent
        assert epochs[0] != epochs[1], persistent


@pytest.mark.parametrize("of", KINDS, ids=lambda of: of.__name__)
def test_weights_may_be_numbers_of_any_kind(of: Any) -> None:
    plain = SampleMultiplexer({IterableWrapper([1] * 9): 2, IterableWrapper([2] * 9): 1}, seed=1)
    assert list(SampleMultiplexer({IterableWrapper([1] * 9): of(2), IterableWrapper([2] * 9): of(1)}, seed=1)) == list(
        plain
    )
