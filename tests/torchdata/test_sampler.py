"""``Sampler``: as torch's."""

from __future__ import annotations

import pytest
from torch.utils.data import RandomSampler, WeightedRandomSampler

from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper, Sampler
from torchpipe.testing import CountingSource, check_node


def test_indices() -> None:
    source = IterableWrapper("abcde")
    assert list(Sampler(source)) == [0, 1, 2, 3, 4]
    assert sorted(Sampler(source, RandomSampler)) == [0, 1, 2, 3, 4]
    assert len(Sampler(source, RandomSampler, sampler_kwargs={"num_samples": 3})) == 3
    with pytest.raises(TypeError):
        Sampler(source.filter(bool))
    with pytest.raises(TypeError):
        Sampler(source, WeightedRandomSampler)


@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
def test_L2_exact_resume() -> None:
    check_node(lambda: Sampler(CountingSource("abcde")))
    loader, again = (DataLoader2(Sampler(IterableWrapper(range(9)), RandomSampler)) for _ in range(2))
    loader.seed(3)
    expected = list(loader)
    loader.set_epoch(0)
    indices = iter(loader)
    assert [next(indices) for _ in range(4)] == expected[:4]
    again.load_state_dict(loader.state_dict())
    assert list(again) == expected[4:]
