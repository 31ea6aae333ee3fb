"""``offer_to_torchs_nodes()``: nodes of torch's own classes have our forms, but for those that are theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import Batcher as TorchBatcher
from torch.utils.data.datapipes.iter import IterableWrapper as TorchIterableWrapper

from tests.test_importing import run
from tests.test_registering import BufferLikeDgl, SortLikeWenet
from tests.warm import Warm
from torchpipe import DataLoader2
from torchpipe.graph import walk
from torchpipe.iter import Batcher, IterableWrapper
from torchpipe.torchdata import Header
from torchpipe.utils import offer_to_torchs_nodes

offer_to_torchs_nodes()


@pytest.fixture(scope="module")
def torch_alone() -> Iterator[Warm]:
    """Runs scripts in processes that have imported nothing but torch."""
    with Warm(modules=["torch"], project=False) as process:
        yield process


def others() -> Any:
    """Nodes of other people on ours, and ours, and torch's, on theirs."""
    source: Any = IterableWrapper(range(20)).shuffle().sharding_filter()
    sampled = source.sample_like_dgl(10).buffer_like_dgl(3)
    return sampled.sort(4, key_func=lambda item: -item).header(9).map(str).batch(2)


def test_ours_on_theirs_and_theirs_on_ours() -> None:
    graph = others()
    assert isinstance(graph, Batcher)
    kinds = {type(node) for node in walk(graph)}
    assert {Batcher, Header, SortLikeWenet, BufferLikeDgl} < kinds  # what was registered with torch comes first
    torchs: Any = TorchIterableWrapper(range(9)).sample_like_dgl(2)
    assert isinstance(torchs.batch(2), TorchBatcher)  # as do torch's own forms
    assert list(DataLoader2(torchs.header(3).enumerate())) == [(0, 0), (1, 2), (2, 4)]
    assert list(torchs.batch(4).pack(4))[-1]["tokens"].tolist() == [16, 0, 0, 0]
    for name in ("of_nobody", "__len__"):
        assert not hasattr(torchs.filter(bool), name)
    with pytest.raises(AttributeError, match="of_nobody"):
        torchs.of_nobody()


TORCHS = """
from torch.utils.data import IterDataPipe
from torchpipe.utils import offer_to_torchs_nodes

class Numbers(IterDataPipe):
    def __iter__(self):
        return iter(range(3))

offer_to_torchs_nodes()
print(*Numbers().enumerate())
"""


def test_torchs_nodes_have_forms_that_nobody_has_imported(torch_alone: Warm, tmp_path: Path) -> None:
    assert "".join(run(torch_alone, tmp_path, TORCHS)) == "(0,0)(1,1)(2,2)"
